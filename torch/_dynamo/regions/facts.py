"""What regions came to in each compile: its calls, its bodies, and what was left out of them, as data for reports.

One record a compile, by the compile's context: a frame that is compiled again has another, and so has what follows a
graph break.  A frame that Dynamo begins anew (an *attempt*) keeps its record, with the calls of the last attempt, and
those that a graph break ended: the last attempt knows of the break, and does not come to the call.

Records are made for compiles with regions only.  What they are made of is at hand when they are made; readers join
them with Dynamo's own metrics by the id and the time of the compile.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch._logging
from torch._dynamo.regions.outcomes import CallOutcome, Difference, RegionInlineReason
from torch._dynamo.regions.source_names import readable
from torch._guards import CompileContext


log = torch._logging.getArtifactLogger(__name__, "hierarchical_compile")

# Compiles that are kept for the report; older ones are dropped.
MAX_COMPILES_KEPT = 1_000


@dataclasses.dataclass
class Body:
    """One body of a frame."""

    name: str
    # With those of the bodies that it calls.
    operators: int
    # How often the frame's graph and its other bodies call it.
    calls: int
    # Where its regions stand that no call shows: the modules, or file:line.
    found: list[str]

    @property
    def saved(self) -> int:
        """Operators that are compiled once instead of once a call."""
        return self.operators * max(self.calls - 1, 0)


@dataclasses.dataclass
class CompileFacts:
    """One compile of a frame with regions."""

    compile_id: str
    thread: str
    # When the record was made, in nanoseconds since the epoch: within the compile.
    at: int
    attempt: int = 0
    frame: str = ""
    defined: str = ""  # file:line
    flag: bool = False
    # Calls that have begun, without those inside of others, and automatic regions that are to come with them.
    begun: int = 0
    expected: int = 0
    # In the order in which they ended.
    calls: list[CallOutcome] = dataclasses.field(default_factory=list)
    bodies: list[Body] = dataclasses.field(default_factory=list)
    # Class of a module -> calls that were not tried as automatic regions, because nothing had become of earlier ones.
    untried: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    # Of the program: those of a body count once for each of its calls.
    operators: int = 0
    # Name of an IllegalReason -> operators that are in no region for it.
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    # What the user is told when nothing became of the flag, or of the marks.
    warning: str = ""

    def in_order(self) -> list[CallOutcome]:
        """The calls in the order in which they began."""
        return sorted(self.calls, key=lambda call: call.order)

    def as_json(self) -> dict[str, Any]:
        """The record as it stands in reports, and in torch's structured trace."""
        return {
            "id": self.compile_id,
            "thread": self.thread,
            "frame": self.frame,
            "defined": self.defined,
            "flag": self.flag,
            "operators": self.operators,
            "calls": [call_as_json(call) for call in self.in_order()],
            "untried": dict(self.untried),
            "bodies": [{**dataclasses.asdict(body), "saved": body.saved} for body in self.bodies],
            "left_out": dict(self.left_out),
            "warning": self.warning,
        }


def by_function(calls: Iterable[CallOutcome]) -> dict[tuple[str, bool], list[CallOutcome]]:
    """``calls`` by the region's function and by whether the region is automatic."""
    found: dict[tuple[str, bool], list[CallOutcome]] = collections.defaultdict(list)
    for call in calls:
        found[call.function, call.automatic].append(call)
    return found


def call_as_json(call: CallOutcome) -> dict[str, Any]:
    """A call as it stands in reports."""
    return {
        "function": call.function,
        "defined": call.defined,
        "path": readable(call.path),
        "caller": call.caller,
        "automatic": call.automatic,
        "outcome": call.outcome.name,
        "reason": call.reason.name if call.reason is not None else None,
        "miss": call.miss.name if call.miss is not None else None,
        "detail": readable(call.miss_detail if call.miss is not None else call.detail),
        "differs": _differs(call.difference),
        "seconds": round(call.seconds, 6),
        "bodies": list(call.bodies),
    }


def _differs(difference: Difference | None) -> dict[str, str] | None:
    if difference is None:
        return None
    here, earlier, value, old = difference
    return {"here": readable(here), "earlier": readable(earlier), "value": value, "old": old}


_kept: collections.deque[CompileFacts] = collections.deque(maxlen=MAX_COMPILES_KEPT)


def facts() -> list[CompileFacts]:
    """The records of the latest compiles with regions, oldest first, at most ``MAX_COMPILES_KEPT``."""
    return list(_kept)


def forget_facts() -> None:
    """Drops all records."""
    _kept.clear()


def facts_of_this_compile() -> CompileFacts | None:
    """The record of the compile that this thread is in, made when it is first asked for; None outside of one."""
    context = CompileContext.try_get()
    if context is None or context.compile_id is None:
        return None
    found: CompileFacts | None = vars(context).get("region_facts")
    if found is None:
        name = threading.current_thread().name
        found = CompileFacts(str(context.compile_id), name, time.time_ns(), context.attempt)
        vars(context)["region_facts"] = found
        _kept.append(found)
    elif found.attempt != context.attempt:
        found.attempt, found.begun = context.attempt, 0
        found.calls = [call for call in found.calls if call.reason is RegionInlineReason.GRAPH_BREAK]
        found.untried.clear()
    return found


def begin_call() -> None:
    """Counts a call of a region that is inside of no other, when it begins."""
    of = facts_of_this_compile()
    if of is not None:
        of.begun += 1


def expect_calls(number: int) -> None:
    """Says how many calls of regions the frame seems to have, as far as that is known while it is traced."""
    of = facts_of_this_compile()
    if of is not None:
        of.expected = number


def note_untried(function: str) -> None:
    """Counts a call of a module that is like others of which no region became."""
    of = facts_of_this_compile()
    if of is not None:
        of.untried[function] += 1


def note(call: CallOutcome) -> None:
    """Keeps the outcome of a call with the compile that it is in, and logs it."""
    of = facts_of_this_compile()
    if of is not None:
        of.calls.append(call)
    if details_are_logged():
        why = [f"{reason.name}: {reason.value}" for reason in (call.reason, call.miss) if reason is not None]
        why += [text for text in (call.detail, readable(call.miss_detail)) if text]
        log.debug("%s called from %s: %s", call.function, call.caller, ", ".join((call.outcome.name, *why)))


def details_are_logged() -> bool:
    """Whether ``+hierarchical_compile`` is asked for: torch's settings of an artifact know no levels."""
    return log.isEnabledFor(10) and "+hierarchical_compile" in os.environ.get("TORCH_LOGS", "")
