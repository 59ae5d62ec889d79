"""The calls of regions in one frame, as data: what tracing notes, and outlining reads at the end of the frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch.fx
from torch._dynamo.regions.outcomes import CallOutcome, CannotReuse, Outcome, RegionInlineReason, record


if TYPE_CHECKING:
    from torch._dynamo.variables.base import VariableTracker


Node = torch.fx.Node
State = TypeVar("State")


class PerFrame(Generic[State]):
    """State that a module keeps for each frame that is traced.  It goes with the frame."""

    def __init__(self, make: Callable[[Any], State]) -> None:
        """``make(output)`` gives the state that a frame begins with; ``output`` is its OutputGraph."""
        self._make = make

    def of(self, output: Any) -> State:
        """The state for the frame of an OutputGraph; made when it is first asked for."""
        try:  # a hook asks each time that Dynamo reads an attribute
            return output.__dict__["region_states"][self]  # type: ignore[no-any-return]
        except KeyError:
            states: dict[Any, Any] = output.__dict__.setdefault("region_states", {})
            states[self] = self._make(output)
            return states[self]  # type: ignore[no-any-return]


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
    stamps: list[StampedCall] = dataclasses.field(default_factory=list)
    # Why it is traced although the region was traced before, or why no other call may reuse it.
    miss: CannotReuse | None = None
    ended: bool = False
    reused: bool = False
    # Whether it is an automatic region (regions/trace/candidates.py).
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


@dataclasses.dataclass
class StampedCall:
    """A call that was stamped out of a traced one."""

    node: Node
    # node of the traced call -> the getitem that stands for it
    results: dict[Node, Node]
    # The call that was being traced when this one was stamped out, if any.
    outer: RegionCall | None

    @property
    def operands(self) -> list[Node]:
        """Values of the frame that stand for those that the traced call takes, in the same order."""
        return list(self.node.args[2:])  # type: ignore[arg-type]


@dataclasses.dataclass
class RegionFrame:
    """The calls of regions in one frame."""

    outermost: list[RegionCall] = dataclasses.field(default_factory=list)
    # The call that is being traced, if any.
    open: RegionCall | None = None
    # node of a region -> its name when the call ended that it was traced in: what the region calls it.
    inside: dict[Node, str] = dataclasses.field(default_factory=dict)


FRAME: PerFrame[RegionFrame] = PerFrame(lambda _: RegionFrame())
