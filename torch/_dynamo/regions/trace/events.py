"""What the hooks in Dynamo's modules report to the region calls that are being traced."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Protocol

from torch._dynamo.regions.frame import PerFrame
from torch._dynamo.regions.trace.objects import checks_by_code


@dataclasses.dataclass(eq=False)
class TraceEvents:
    """The reports for one call from hooks that do not know the frame."""

    # Sources that Dynamo reached.
    reached: set[Any] = dataclasses.field(default_factory=set)
    # Sources of opaque objects whose contents the program read.
    opened: set[Any] = dataclasses.field(default_factory=set)
    # Names of the program's functions that Dynamo ran on an object without tracing them: no guard says what they read.
    ran: set[str] = dataclasses.field(default_factory=set)
    # Sources of functions and classes that were keys of a dict or set: Dynamo hashes such a key without building it.
    hashed: set[Any] = dataclasses.field(default_factory=set)
    # What the program made out of an object's identity alone: no guard says so, or no fact compares it.
    by_identity: set[str] = dataclasses.field(default_factory=set)


class Recorder(Protocol):
    """Records the reads of one call; see read_set.py."""

    # The call's DeferredValues.
    deferred: Any
    # Sources that the call read.
    sources: Any
    # Trackers that the call changed, and the contents of cells that it read.
    changed: list[Any]
    loaded: list[Any]

    def load(self, item: Any, name: str, value: Any) -> Any:
        """Records that the program reads ``name`` of ``item``, bound to ``value``; returns what the call sees there."""

    def adopt(self, sources: Any, read: Any, hashed: Any) -> None:
        """Takes over the reads that an inner call would have made, had it not been stamped out."""

    def unrecorded(self) -> contextlib.AbstractContextManager[None]:
        """A context whose reads do not count as the call's."""


# One for each call that is being traced, in any frame.
TRACE_EVENTS: list[TraceEvents] = []
# The recorders of one frame's calls that are being traced, the outermost first.
RECORDERS: PerFrame[list[Recorder]] = PerFrame(lambda _: [])


def note_run(name: str) -> None:
    """Reports that Dynamo runs the program's function ``name`` on an object."""
    for events in TRACE_EVENTS:
        events.ran.add(name)


def note_identity(what: str) -> None:
    """Reports ``what`` the program has made out of an object's identity alone, for which there is no guard."""
    for events in TRACE_EVENTS:
        events.by_identity.add(what)


def note_check(kind: Any) -> None:
    """Reports an ``isinstance`` check; ``kind`` is the tracker of the class."""
    found: Any = kind.peek_value() if hasattr(kind, "peek_value") else getattr(kind, "value", None)
    if checks_by_code(found):
        note_run(f"{found.__name__}.__instancecheck__")
