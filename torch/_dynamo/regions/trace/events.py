"""What the hooks in Dynamo's modules report to the region calls that are being traced."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

from torch._dynamo.regions.frame import PerFrame
from torch._dynamo.regions.trace.module_hooks import HOOKS, calls_hooks, is_filled
from torch._dynamo.regions.trace.objects import checks_by_code, find_in_class, of_class


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

    def adopt(self, sources: Any, read: Any, hashed: Any, pending: Any) -> None:
        """Takes over the reads that an inner call would have made, had it not been stamped out."""

    def unrecorded(self) -> contextlib.AbstractContextManager[None]:
        """A context whose reads do not count as the call's."""


# One for each call that is being traced, in any frame.
TRACE_EVENTS: list[TraceEvents] = []
# The recorders of one frame's calls that are being traced, the outermost first.
RECORDERS: PerFrame[list[Recorder]] = PerFrame(lambda _: [])


def _holds_weights(tracker: Any) -> bool:
    return getattr(tracker.source, "member", None) in ("_parameters", "_buffers")


def _changed_before(output: Any) -> dict[int, Any]:
    """What the frame has changed before its first call of a marked function: until then, no hook runs."""
    found = filter(_holds_weights, output.side_effects.id_to_variable.values())
    return {id(each): each for each in found if output.side_effects.is_modified(each)}


# id -> dict of a module's weights that the frame has changed at some time, kept alive so that ids are not reused
CHANGED_WEIGHTS: PerFrame[dict[int, Any]] = PerFrame(_changed_before)


def note_change(output: Any, item: Any) -> None:
    """Reports that the frame is about to change ``item``."""
    if output is not None and _holds_weights(item):
        CHANGED_WEIGHTS.of(output)[id(item)] = item


def note_run(name: str) -> None:
    """Reports that Dynamo runs the program's function ``name`` on an object."""
    for events in TRACE_EVENTS:
        events.ran.add(name)


def note_identity(what: str) -> None:
    """Reports ``what`` the program has made out of an object's identity alone, for which there is no guard."""
    for events in TRACE_EVENTS:
        events.by_identity.add(what)


def note_hooks(module: Any, name: str, code: Any) -> None:
    """Reports that ``code`` reads the attribute ``name`` of a module, if that is a dict of hooks."""
    if name not in HOOKS or calls_hooks(code):
        return
    if is_filled(object.__getattribute__(module.value, "__dict__").get(name)):
        note_identity(f"a hook, by its number in {name}")


def note_text(fn: Any, tracker: Any) -> None:
    """Reports that the program makes text of ``tracker`` by ``fn``: ``str``, ``repr``, ``format`` or ``ascii``.

    The text of an object or function that has none of its own is its address.  Dynamo runs an object's ``__repr__``
    for ``str`` without tracing it.
    """
    todo, seen = [tracker], set()
    while todo:
        known = todo.pop().unwrap()
        if id(known) in seen:
            continue
        seen.add(id(known))
        kinds = {base.__name__ for base in type(known).__mro__}
        if "BaseUserFunctionVariable" in kinds:
            note_identity("the text of a function")
        elif "UserDefinedObjectVariable" in kinds:
            kind: Any = type(known.value)
            by = find_in_class(kind, "__repr__")
            untraced = fn in (str, format) and len(seen) == 1 and find_in_class(kind, "__str__") is object.__str__
            if by is object.__repr__:
                note_identity("the text of an object")
            elif untraced:
                note_run(f"{of_class(kind, '__name__')}.__repr__")
        todo += _trackers_in(vars(known))


def _trackers_in(fields: dict[str, Any]) -> Iterator[Any]:
    """The trackers whose text is part of that of the tracker with these fields."""
    for name in ("items", "args", "_base_vt"):
        held = fields.get(name)
        if isinstance(held, dict):
            yield from (key.vt for key in held)
            held = held.values()
        elif name == "_base_vt":
            held = (held,)
        yield from (each for each in held or () if hasattr(type(each), "unwrap"))


def note_check(kind: Any) -> None:
    """Reports an ``isinstance`` check; ``kind`` is the tracker of the class."""
    found: Any = kind.peek_value() if hasattr(kind, "peek_value") else getattr(kind, "value", None)
    if checks_by_code(found):
        note_run(f"{found.__name__}.__instancecheck__")
