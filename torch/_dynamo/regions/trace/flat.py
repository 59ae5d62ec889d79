"""Records which operators of the graph belong to which call of a region.

Note [A region is traced flat and cut out afterwards]
A call of a region is traced like any other call: inlined, into the graph around it.  Only where
it begins and ends is noted.  At the end of the frame the noted run of operators is cut out of the
graph and becomes a call of a body (regions/outline/calls.py).  So by construction

- what Dynamo goes on tracing with is what it is without the mark: any Python value, side effect,
  exception, graph break, guard, recompile and name;
- a region that cannot be kept is not rolled back: nothing was done yet.  It costs what flat
  tracing costs;
- which values the body must return is not guessed from the call's result but read off the
  finished graph: those with a user outside;
- a value that is passed through (an input, a capture) has no node in the run, so it never becomes
  an output.

The design page has step 4a trace the body by itself and repair its boundary, and 4c roll back.
That asks of every feature of Dynamo whether it works in a body; this asks of none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch.fx
from torch._dynamo import config
from torch._dynamo.exc import ObservedException, RestartAnalysis, TorchRuntimeError, Unsupported
from torch._dynamo.regions.frame import FRAME, Node, RegionCall
from torch._dynamo.regions.outcomes import Outcome, RegionInlineReason
from torch._dynamo.regions.stack_trace import stack_trace


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


def trace_flat(tx: InstructionTranslatorBase, call: RegionCall, body: Callable[[], VariableTracker]) -> VariableTracker:
    """Runs ``body``, which traces the call, and notes the operators that it records.

    Whatever ``body`` returns or raises is passed on.
    """
    graph, frame = tx.output.graph, FRAME.of(tx.output)
    before = graph._root.prev
    call.stack_trace = stack_trace(tx)
    call.outer = outer = frame.open
    frame.open = call
    tracked = config.track_nodes_for_deduplication
    try:
        # Per node, the tracker notes the global state that it was recorded under.
        config.track_nodes_for_deduplication = True
        result = body()
    except RestartAnalysis:
        raise  # the frame is traced anew, and the call with it
    except Exception as e:
        call.end(Outcome.INLINED, _why_it_left(e), type(e).__name__)
        raise
    finally:
        frame.open = outer
        config.track_nodes_for_deduplication = tracked
    nodes = _recorded_since(graph, before)
    if nodes is None:
        call.end(Outcome.INLINED, RegionInlineReason.FAILED)
        return result
    call.graph, call.nodes = graph, nodes
    for node in nodes:
        frame.inside.setdefault(node, node.name)
    # An inner call in another graph is in the body of a higher order operator inside this one.
    (outer.inner if outer is not None else frame.outermost).append(call)
    return result


def _why_it_left(error: Exception) -> RegionInlineReason:
    if isinstance(error, Unsupported):
        return RegionInlineReason.GRAPH_BREAK
    # The program's own: raised by its code, or by an operator that it called.
    raised = isinstance(error, (ObservedException, TorchRuntimeError))
    return RegionInlineReason.RAISED if raised else RegionInlineReason.FAILED


def _recorded_since(graph: torch.fx.Graph, before: Node) -> list[Node] | None:
    """Nodes behind ``before``, in order, but for inputs of the graph; None when ``before`` has been erased."""
    nodes: list[Node] = []
    node = graph._root.prev
    while node is not before:
        if node is graph._root:
            return None
        # When nothing else has been recorded, new inputs stand behind ``before`` too.
        if node.op != "placeholder":
            nodes.append(node)
        node = node.prev
    nodes.reverse()
    return nodes
