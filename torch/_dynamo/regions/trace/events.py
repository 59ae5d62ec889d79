"""What Dynamo tells the region calls that are being traced: the hooks in its modules, and who listens to them."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Protocol

from torch._dynamo.regions.frame import PerFrame
from torch._dynamo.regions.trace.objects import checks_by_code


@dataclasses.dataclass(eq=False)
class TraceEvents:
    """What one call hears of from hooks that know no frame."""

    # Sources that Dynamo reached.
    reached: set[Any] = dataclasses.field(default_factory=set)
    # Sources of opaque objects that the program looked into.
    opened: set[Any] = dataclasses.field(default_factory=set)
    # Names of the program's code that Dynamo ran on an object, and did not trace: no guard says what it read.
    ran: set[str] = dataclasses.field(default_factory=set)


class Recorder(Protocol):
    """What records the reads of one call; see read_set.py."""

    # The constants of the call that are held back; see deferred.py.
    deferred: Any
    # Sources that the call asked for.
    sources: Any
    # Trackers that the call changed, and contents of cells that it read.
    changed: list[Any]
    loaded: list[Any]

    def load(self, item: Any, name: str, value: Any) -> Any:
        """Hears that the program reads ``name`` of ``item``, bound to ``value``; returns what the call gets to see."""

    def adopt(self, sources: Any, read: Any) -> None:
        """Takes over what a call that was stamped out inside this one would have read."""

    def unrecorded(self) -> contextlib.AbstractContextManager[None]:
        """What is read meanwhile is not what the call reads."""


# One for each call that is being traced.
TRACE_EVENTS: list[TraceEvents] = []
# The same of one frame, the outermost call first.
RECORDERS: PerFrame[list[Recorder]] = PerFrame(lambda _: [])


def note_run(name: str) -> None:
    """Notes that Dynamo runs code of the program on an object."""
    for events in TRACE_EVENTS:
        events.ran.add(name)


def note_check(kind: Any) -> None:
    """Notes that a class is asked whether an object is one of its own; ``kind`` is the tracker of the class."""
    found: Any = kind.peek_value() if hasattr(kind, "peek_value") else getattr(kind, "value", None)
    if checks_by_code(found):
        note_run(f"{found.__name__}.__instancecheck__")
