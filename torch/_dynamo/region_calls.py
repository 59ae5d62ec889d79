"""Records which operators of the graph belong to which call of a region.

Note [A region is traced flat and cut out afterwards]
A call of a region is traced like any other call: inlined, into the graph around it.  Only where
it begins and ends is noted.  At the end of the frame the noted run of operators is cut out of the
graph and becomes a call of a body (region_cutting.py).  So by construction

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

import dataclasses
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.fx
from torch._dynamo import config
from torch._dynamo.exc import ObservedException, RestartAnalysis, TorchRuntimeError, Unsupported
from torch._dynamo.region_candidates import Candidates
from torch._dynamo.region_outcomes import CallOutcome, Outcome, RegionInlineReason, record
from torch.fx.experimental.symbolic_shapes import uninteresting_files


if TYPE_CHECKING:
    from torch._dynamo.region_arguments import CannotReuse
    from torch._dynamo.region_held import Holding
    from torch._dynamo.region_reads import Observer
    from torch._dynamo.region_stamps import Stamp
    from torch._dynamo.region_transport import Fates, Place, Resolver
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


Node = torch.fx.Node


@dataclasses.dataclass
class RegionCall:
    """One call of a region, as it stands in a graph."""

    function: str
    caller: str  # file:line
    # The user's stack where it is called, for the node that it becomes.
    stack_trace: str | None = None
    # What the user wants the body compiled with (nested_compile_region's options), or None.
    options: Any = None
    # What the user says that it depends on (nested_compile_region's reuse_hash_fn): calls of equal keys have one body.
    key: int | None = None
    graph: torch.fx.Graph | None = None
    # Its operators in program order, those of inner calls included.
    nodes: list[Node] = dataclasses.field(default_factory=list)
    inner: list[RegionCall] = dataclasses.field(default_factory=list)
    # The call that this one was traced in, if any.
    outer: RegionCall | None = None
    # For a call that was a stamp: node of the call that it was stamped out of -> its own.
    came_from: dict[Node, Node] = dataclasses.field(default_factory=dict)
    # The calls stamped out of this one.
    stamps: list[Stamp] = dataclasses.field(default_factory=list)
    # Why it is traced although the region was traced before, or why no other call may reuse it.
    miss: CannotReuse | None = None
    ended: bool = False
    reused: bool = False
    # Whether nobody asked for the region (region_candidates.py).
    automatic: bool = False
    # What traces it, given the callee, the frame and the arguments; when None, the callee does.
    run: Callable[..., VariableTracker] | None = None

    @property
    def operands(self) -> list[Node]:
        """Values that the operators take from outside, by first use."""
        inside = set(self.nodes)
        return list(dict.fromkeys(o for n in self.nodes if not n._erased for o in n.all_input_nodes if o not in inside))

    def end(self, outcome: Outcome, reason: RegionInlineReason | None = None, detail: str = "") -> None:
        """Records what became of the call, unless that was done before."""
        if not self.ended:
            self.ended = True
            self.reused = outcome is Outcome.REUSED
            miss = self.miss.reason if self.miss is not None else None
            record(CallOutcome(self.function, self.caller, outcome, reason, detail, miss, self.automatic))


class RegionCalls:
    """The calls of regions in one frame."""

    def __init__(self) -> None:
        self.outermost: list[RegionCall] = []
        # The call that is being traced, if any.
        self.open: RegionCall | None = None
        # Of the calls that are being traced, those that may be reused.
        self.observers: list[Observer] = []
        # What stands at a source when the frame begins.
        self.resolver: Resolver | None = None
        self.candidates = Candidates()
        # id of an object that a stamped call met -> what makes its source there. Dynamo has no tracker of it.
        self.stamped: dict[int, tuple[Fates, Place]] = {}
        # name of a source -> the frame (code and closure) that asked for the history of a number or size there. Without
        # it, what changes between compiles would turn dynamic in another compile than without the region.
        self.askers: dict[str, tuple[Any, Any]] = {}
        # The one that is to be taken for it now.
        self.asker: tuple[Any, Any] | None = None
        # Whether the graph is one for export; None as long as nobody has asked.
        self.exported: bool | None = None
        # Whether plain parameters are inputs of static sizes; None as long as nobody has asked.
        self.lifts: bool | None = None
        # Where a stack trace was last asked for, and what it was there.
        self.traced_at: tuple[Any, str] | None = None
        # Containers that a held index was used on, where what they hold was known before the call.
        self.indexed: dict[int, VariableTracker] = {}
        # node of a region -> its name when the call ended that it was traced in: what the region calls it.
        self.inside: dict[Node, str] = {}

    def is_only(self, holding: Holding) -> bool:
        """Whether the call of ``holding`` is the only one that is observed."""
        return len(self.observers) == 1 and self.observers[0].holding is holding

    def trace(
        self, tx: InstructionTranslatorBase, call: RegionCall, body: Callable[[], VariableTracker]
    ) -> VariableTracker:
        """Runs ``body``, which traces the call, and notes the operators that it records.

        Whatever ``body`` returns or raises is passed on.
        """
        graph = tx.output.graph
        before = graph._root.prev
        call.stack_trace = stack_trace(tx)
        call.outer = outer = self.open
        self.open = call
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
            self.open = outer
            config.track_nodes_for_deduplication = tracked
        nodes = _recorded_since(graph, before)
        if nodes is None:
            call.end(Outcome.INLINED, RegionInlineReason.FAILED)
            return result
        call.graph, call.nodes = graph, nodes
        for node in nodes:
            self.inside.setdefault(node, node.name)
        # An inner call in another graph is in the body of a higher order operator inside this one.
        (outer.inner if outer is not None else self.outermost).append(call)
        return result


def stack_trace(tx: InstructionTranslatorBase) -> str:
    """The user's stack at ``tx``, as nodes have it."""
    frames = []
    frame: Any = tx
    while frame is not None:
        frames.append(frame)
        frame = frame.parent
    place = tuple([(frame.f_code, frame.current_instruction, frame.lineno) for frame in frames])
    calls = tx.output.region_tracker.calls
    if calls.traced_at is None or calls.traced_at[0] != place:
        users = [frame.frame_summary() for frame in frames if not frame.is_co_filename_from_nn_modules()]
        summaries = [f for f in users if f.filename not in uninteresting_files()]
        calls.traced_at = place, "".join(traceback.StackSummary.from_list(summaries[::-1]).format())
    return calls.traced_at[1]


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
