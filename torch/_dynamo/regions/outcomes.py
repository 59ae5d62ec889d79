"""The outcome of each region call, TRACED, REUSED or INLINED, and its reason.

Every call has exactly one outcome.  ``record`` counts it (``torch._dynamo.utils.counters["regions"]``) and keeps it;
facts.py keeps it with the compile that it is in, and logs it (``TORCH_LOGS=+hierarchical_compile``).
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import NamedTuple


# Number of outcomes kept for the report; older ones are dropped.
MAX_OUTCOMES_KEPT = 10_000


class Outcome(enum.Enum):
    """The outcome of one region call."""

    TRACED = "traced"  # its operators were recorded, and outlined into a body
    REUSED = "reused"  # an earlier call's body was stamped out
    INLINED = "inlined"  # its operators stay in the graph around it


class RegionInlineReason(enum.Enum):
    """Why a region call is inlined.  The program is right either way."""

    GRAPH_BREAK = "a graph break ended its trace"
    RAISED = "it raised an exception"
    NO_OPERATORS = "nothing that it computes is left in the graph"
    INSIDE_HIGHER_ORDER_OP = "it is called inside the body of another higher order operator"
    COMPILED_AUTOGRAD = "compiled autograd traces its backward, where no body may be called"
    AOTAUTOGRAD_OPTION = "an option of AOTAutograd is on that does not look into bodies"
    MEMORY_BUDGET = (
        "the backward may run any operator again, to keep to a memory budget, and a call of a body is not one"
    )
    NO_LEGAL_OPERATORS = "none of its operators may be in a body"
    NOT_REPEATED = "it is automatic, and no other call was stamped out of it"
    OWN_SIZES = "it is automatic, and its sizes are symbols that no other call has"
    NOTHING_INSIDE_BOUNDARY = "nothing is left of it between the values that may not cross a boundary"
    FAILED = "tracing or outlining it failed"


class ReuseMissReason(enum.Enum):
    """Why a region call is traced although the region was traced before."""

    # Why no later call can reuse this one, or why this one can reuse no earlier call.
    UNSUPPORTED_ARGUMENT = "an argument is of a kind that is not compared"
    UNSUPPORTED_RESULT = "its result is of a kind that is not rebuilt"
    UNSUPPORTED_GUARD = "tracing it made a guard that is not transported"
    UNSUPPORTED_VALUE = "it looks at a value of a kind that is not compared in full"
    UNSUPPORTED_SOURCE = "it reached a value in a way that is not followed"
    RUNS_CODE = "only code of the program can tell what it looked at"
    UNKNOWN_CAPTURE = "it uses a value of the frame that no argument leads to"
    FIRST_STORE = "it is the frame's first call that stores to an element, so its other reads were not noted"
    SIDE_EFFECT = "it changes something outside of it"
    WRITES_A_TENSOR = "it writes to a tensor of the caller's"
    CHANGES_GLOBAL_STATE = "it leaves another global state behind than it found"
    READS_PENDING_STATE = "it reads something that the frame has changed"
    RESULT_SHARES_MEMORY = "a result shares memory with something outside of it"
    UNBACKED_SYMBOL = "it makes a size that depends on data"
    INSIDE_HIGHER_ORDER_OP = "it is called inside the body of a higher order operator"
    WEIGHTS_ARE_ATTRIBUTES = "weights are attributes of the graph (an export, freezing), each registered once"
    INSIDE_TRANSFORM = "it is called inside vmap or another function transform"
    INDEX_NOT_ALONE = "it finds an element by an index and also by another way"
    SYMBOLIC_NUMBER = "it reads a number behind an argument that Dynamo treats as symbolic"
    # Why no earlier call matches.
    ARGUMENTS_DIFFER = "no earlier call had such arguments"
    NO_SOURCE = "something behind an argument was read, and this argument is computed in the frame"
    GUARD_FAILS = "an earlier call read something that is different here"
    OBJECT_DIFFERS = "an object has other attributes or hooks than the earlier call's"
    ALIASING_DIFFERS = "other things are the same object than in the earlier call"
    READ_BY_FRAME = "the frame has read something of the earlier call's arguments that it has not read of these"
    CAPTURE_DIFFERS = "a captured tensor has other metadata than the earlier call's"


class Difference(NamedTuple):
    """What a call read that an earlier call of the region read otherwise."""

    here: str  # the name of its source in this call
    earlier: str  # and in the earlier one
    value: str
    old: str


class CannotReuse(Exception):
    """Why a call cannot reuse an earlier one, or be reused by a later one; ``detail`` names the obstacle."""

    def __init__(self, reason: ReuseMissReason, detail: str = "", difference: Difference | None = None) -> None:
        super().__init__(reason.value, detail)
        self.reason = reason
        self.detail = detail
        self.difference = difference

    def without_frames(self) -> CannotReuse:
        """This, to be kept: the frames of a traceback hold objects of the program, and maybe this one."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


@dataclasses.dataclass(frozen=True)
class CallOutcome:
    """One region call and its outcome."""

    function: str
    caller: str  # file:line
    outcome: Outcome
    reason: RegionInlineReason | None = None
    detail: str = ""
    miss: ReuseMissReason | None = None
    automatic: bool = False
    # What was compared when it was not reused, and, where that is known, what differed.
    miss_detail: str = ""
    difference: Difference | None = None
    # Where the function is defined, file:line, and the name of the source of the module, "" where not known.
    defined: str = ""
    path: str = ""
    # When the call began, in nanoseconds since the epoch, and Dynamo's time for it, with the calls inside of it.
    began: int = 0
    seconds: float = 0.0
    # Ascending in the order in which the calls began, in the whole process.
    order: int = 0
    # Names of the bodies that it became, in the order in which they were made; filled at the end of the frame.
    bodies: list[str] = dataclasses.field(default_factory=list, compare=False)


_kept: collections.deque[CallOutcome] = collections.deque(maxlen=MAX_OUTCOMES_KEPT)


def record(call: CallOutcome) -> None:
    """Counts and keeps the outcome of a call."""
    from torch._dynamo.utils import counters

    counters["regions"][call.outcome.value] += 1
    if call.automatic:
        counters["regions"][f"automatic: {call.outcome.value}"] += 1
    if call.reason is not None:
        counters["regions"][f"inlined: {call.reason.value}"] += 1
    if call.miss is not None:
        counters["regions"][f"not reused: {call.miss.value}"] += 1
    _kept.append(call)


def outcomes() -> list[CallOutcome]:
    """The latest outcomes, oldest first, at most ``MAX_OUTCOMES_KEPT``."""
    return list(_kept)


def forget_outcomes() -> None:
    """Drops all outcomes that are kept."""
    _kept.clear()
