"""The region calls of one frame, as data: tracing writes them, and outlining reads them at the end of the frame."""

from __future__ import annotations

import dataclasses
import itertools
import time
import types
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch.fx
from torch._dynamo.regions.facts import note
from torch._dynamo.regions.outcomes import CallOutcome, CannotReuse, Outcome, RegionInlineReason, record


if TYPE_CHECKING:
    from torch._dynamo.variables.base import VariableTracker


Node = torch.fx.Node
State = TypeVar("State")


class PerFrame(Generic[State]):
    """A module's state for each traced frame.  It goes with the frame."""

    def __init__(self, make: Callable[[Any], State]) -> None:
        """``make(output)`` returns the initial state of the frame whose OutputGraph is ``output``."""
        self._make = make

    def of(self, output: Any) -> State:
        """The state of the frame whose OutputGraph is ``output``, made on first use."""
        try:  # hot: a hook calls this each time that Dynamo reads an attribute
            return output.__dict__["region_states"][self]  # type: ignore[no-any-return]
        except KeyError:
            states: dict[Any, Any] = output.__dict__.setdefault("region_states", {})
            states[self] = self._make(output)
            return states[self]  # type: ignore[no-any-return]


# What holds objects of the program in reference cycles: emptied when the frame is done.
HOLDERS: PerFrame[list[Any]] = PerFrame(lambda _: [])


def release(output: Any) -> None:
    """Drops the states of a frame, such that no object of the program waits for Python's garbage collector."""
    states = vars(output).pop("region_states", {})
    for holder in states.get(HOLDERS, ()):
        vars(holder).clear()
    for state in states.values():
        if isinstance(state, (dict, list)):
            state.clear()


def defined_at(function: Any) -> str:
    """File and line of a Python function's definition, or ""; no code of the program's is run."""
    if type(function) is types.MethodType:
        function = function.__func__
    if type(function) is not types.FunctionType:
        return ""
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


@dataclasses.dataclass
class RegionCall:
    """One call of a region, and its operators in the graph."""

    function: str
    caller: str  # file:line
    # The user's stack at the call, for the node that the call becomes.
    stack_trace: str | None = None
    # The options of nested_compile_region that the body is compiled with, or None.
    options: Any = None
    # nested_compile_region's reuse_hash_fn and what it returned, or None: calls with equal keys share one body.
    key: Hashable = None
    graph: torch.fx.Graph | None = None
    # The call's operators in program order, including those of inner calls.
    nodes: list[Node] = dataclasses.field(default_factory=list)
    inner: list[RegionCall] = dataclasses.field(default_factory=list)
    # The call during whose trace this one was made, if any.
    outer: RegionCall | None = None
    # For a stamped call whose operators were put back: node of the traced call -> this call's own.
    came_from: dict[Node, Node] = dataclasses.field(default_factory=dict)
    stamps: list[StampedCall] = dataclasses.field(default_factory=list)
    # Why this call could not reuse an earlier one, or why no later call can reuse this one.
    miss: CannotReuse | None = None
    ended: bool = False
    reused: bool = False
    # Whether it was stamped out of, or into, a call whose sizes have other symbols, and they share no body.
    own_sizes: bool = False
    # Whether this is an automatic region (regions/trace/candidates.py).
    automatic: bool = False
    # Traces the call, given callee, frame, arguments and keywords. If None, the callee's own method traces it.
    run: Callable[..., VariableTracker] | None = None
    # For the report: where it stands in the order of calls, where the function is defined, the name of its module's
    # source, when the call began (nanoseconds since the epoch), Dynamo's time for it, and the names of its bodies, in
    # one list for the call and its stamps.
    order: int = dataclasses.field(default_factory=itertools.count().__next__)
    defined: str = ""
    path: str = ""
    began: int = 0
    seconds: float = 0.0
    bodies: list[str] = dataclasses.field(default_factory=list)

    @property
    def operands(self) -> list[Node]:
        """The values from outside that the operators take, in the order of first use."""
        inside = set(self.nodes)
        return list(dict.fromkeys(o for n in self.nodes if not n._erased for o in n.all_input_nodes if o not in inside))

    def note_miss(self, why: CannotReuse) -> None:
        """Notes why the call is not reused."""
        self.miss = why.without_frames()

    def stop_clock(self) -> None:
        """Ends the time that the call takes, which is negative as long as it is not known."""
        if self.seconds < 0:
            self.seconds += time.perf_counter()

    def end(self, outcome: Outcome, reason: RegionInlineReason | None = None, detail: str = "") -> None:
        """Records the outcome of the call, unless it has one already."""
        if not self.ended:
            self.ended = True
            self.reused = outcome is Outcome.REUSED
            self.stop_clock()
            miss = self.miss
            ended = CallOutcome(
                self.function,
                self.caller,
                outcome,
                reason,
                detail,
                miss.reason if miss is not None else None,
                self.automatic,
                miss_detail=miss.detail if miss is not None else "",
                difference=miss.difference if miss is not None else None,
                defined=self.defined,
                path=self.path,
                began=self.began,
                seconds=self.seconds,
                order=self.order,
                bodies=self.bodies,
            )
            record(ended)
            note(ended)


@dataclasses.dataclass
class StampedCall:
    """A call that was stamped out of a traced one."""

    node: Node
    # result node of the traced call -> the getitem that stands for it here
    results: dict[Node, Node]
    # The call that was being traced when this one was stamped out, if any.
    outer: RegionCall | None
    # symbol of the traced call -> symbol of this call, where they differ. See outline/renaming.py.
    symbols: dict[Any, Any] = dataclasses.field(default_factory=dict)

    @property
    def operands(self) -> list[Node]:
        """This call's operands, in the order of the traced call's."""
        return list(self.node.args[2:])  # type: ignore[arg-type]


@dataclasses.dataclass
class RegionFrame:
    """The region calls of one frame."""

    outermost: list[RegionCall] = dataclasses.field(default_factory=list)
    # The call that is being traced, if any.
    open: RegionCall | None = None
    # node of a region -> its name when the call that recorded it ended: its name inside the region.
    inside: dict[Node, str] = dataclasses.field(default_factory=dict)


FRAME: PerFrame[RegionFrame] = PerFrame(lambda _: RegionFrame())
