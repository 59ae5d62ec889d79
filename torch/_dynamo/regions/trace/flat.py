"""Traces a region call, and records which operators of the graph belong to it.

Note [A region is traced flat and cut out afterwards]
Dynamo traces a region call like any other call: inlined, into the surrounding graph.  ``trace_flat`` notes only where
the call begins and ends.  At the end of the frame, that run of operators is cut out of the graph and becomes a call of
a body (regions/outline/calls.py).  So by construction

- Dynamo goes on tracing as it does without the mark: with the same Python values, side effects, exceptions, graph
  breaks, guards, recompiles and names;
- a region that cannot be outlined needs no rollback, since nothing was done yet.  It costs what flat tracing costs;
- the finished graph tells which values the body must return: those with a user outside.  Nothing is guessed from the
  call's result;
- a value that is passed through (an input, a capture) has no node in the run, so it never becomes an output.
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

    Returns or raises what ``body`` does.
    """
    graph, frame = tx.output.graph, FRAME.of(tx.output)
    before = graph._root.prev
    call.stack_trace = stack_trace(tx)
    call.outer = outer = frame.open
    frame.open = call
    tracked = config.track_nodes_for_deduplication
    try:
        # Makes the region tracker note the global state under which each node is recorded.
        config.track_nodes_for_deduplication = True
        result = body()
    except RestartAnalysis:
        raise  # Dynamo traces the frame anew, and the call with it
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
    # An inner call may be in another graph: in the body of a higher order operator inside this call.
    (outer.inner if outer is not None else frame.outermost).append(call)
    return result


def _why_it_left(error: Exception) -> RegionInlineReason:
    if isinstance(error, Unsupported):
        return RegionInlineReason.GRAPH_BREAK
    # The program's own exception, raised by its code or by an operator that it called.
    raised = isinstance(error, (ObservedException, TorchRuntimeError))
    return RegionInlineReason.RAISED if raised else RegionInlineReason.FAILED


def _recorded_since(graph: torch.fx.Graph, before: Node) -> list[Node] | None:
    """The nodes after ``before``, in order, without inputs of the graph; None if ``before`` was erased."""
    nodes: list[Node] = []
    node = graph._root.prev
    while node is not before:
        if node is graph._root:
            return None
        # New inputs may stand after ``before``, if no operator was recorded before.
        if node.op != "placeholder":
            nodes.append(node)
        node = node.prev
    nodes.reverse()
    return nodes
