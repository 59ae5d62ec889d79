"""What tracing a region read and changed, whichever part of Dynamo answered.

Note [A read set is everything behind the arguments]
A traced body depends on what tracing it observed.  Dynamo answers an observation in many ways: it
builds a tracker and makes a guard, finds the tracker in a cache, finds the guard made before,
asks the side effects.  A recorder at each of these doors would miss the next one.  So the read
set is not what was recorded; it is all that may have been read:

- *behind an argument* (a source that begins with an argument's source): every guard there is, made
  by this call or before, and every tracker there is.  Each must hold again behind the new
  argument.  It is a little more than was read, and never less.  Where the call may not have read a guarded source, as
  the frame had made the guard before, the frame must have made it for the other call too: nothing is guarded more.
- *elsewhere*: such a source is the same source in every call, so the same real object answers.  Only
  what the frame itself changes meanwhile can differ.  For that, the objects that the call read are
  kept (``ReadSetRecorder.read_objects``); a change of one that is pending refuses.

What a guard does not say although tracing looks at it is compared besides: a module's hooks, an
object's own attributes, and which things are one object.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch._dynamo.regions.trace.containers import INDEXED, Watch
from torch._dynamo.regions.trace.deferred import DeferredConstant
from torch._dynamo.regions.trace.deferred_values import DeferredValues
from torch._dynamo.regions.trace.events import RECORDERS, TRACE_EVENTS, TraceEvents
from torch._dynamo.regions.trace.state import autograd_state
from torch._dynamo.regions.trace.substitution import resolver
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.hashable import HashableTracker
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.misc import CellVariable, NewGlobalVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch.utils._ordered_set import OrderedSet


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source


class ReadingCache(dict[Any, Any]):
    """Dynamo's cache of trackers by source, which tells the recorders what is asked of it.

    So does ``traced_sources``, which Dynamo's tracer adds each source to that a tracker is built for.
    """

    def __init__(self, trackers: dict[Any, Any]) -> None:
        super().__init__(trackers)
        self.recorders: list[ReadSetRecorder] = []

    def get(self, source: Any, default: Any = None) -> Any:
        for recorder in self.recorders:
            recorder.sources.add(source)
        return super().get(source, default)


class ReadSetRecorder:
    """Observes one call of a region while it is traced."""

    def __init__(self, tx: InstructionTranslatorBase) -> None:
        self.tx = tx
        # Sources that the call asked for, through any door that knows a source, in that order.
        self.sources: OrderedSet[Source] = OrderedSet()
        # Sources that the call reached otherwise than by an argument's tracker, and opaque objects it looked into.
        self.events = TraceEvents()
        # Trackers whose pending attributes or cells were read, but for those constants that are held back.
        self.read_pending: list[VariableTracker] = []
        self.deferred = DeferredValues(self)
        # Contents of cells that were read.
        self.loaded: list[VariableTracker] = []
        # Trackers that were changed, but for those that the call made.
        self.changed: list[VariableTracker] = []
        self._counts = self._count()
        # How many guards the frame has made before the call; they are in order.
        self.guards_before = len(tx.output.guards)
        # Objects that Dynamo knew before the call. Kept, so that no id is used again.
        self._known = list(tx.output.side_effects.id_to_variable.values())
        # tracker -> name -> what the frame had bound it to before the call
        self.before = {item: dict(stored) for item, stored in tx.output.side_effects.store_attr_mutations.items()}
        # id of a tensor's tracker -> its autograd state before the call
        self._autograd = {id(t): _autograd_state(t) for t in self._known if isinstance(t, TensorVariable)}

    def __enter__(self) -> ReadSetRecorder:
        output = self.tx.output
        if type(output.variable_tracker_cache) is not ReadingCache:
            output.variable_tracker_cache = ReadingCache(output.variable_tracker_cache)
        self._outer_sources = output.current_tracer.traced_sources
        output.current_tracer.traced_sources = type(self._outer_sources)()
        output.variable_tracker_cache.recorders.append(self)  # type: ignore[attr-defined]
        # An answer of inspect.signature that the frame has kept would hide what it depends on.
        self._outer_signatures, output.signature_cache = output.signature_cache, {}
        recorders = RECORDERS.of(output)
        self._watch = Watch(self.tx, () if recorders else INDEXED.of(output).values())
        recorders.append(self)
        TRACE_EVENTS.append(self.events)
        return self

    def __exit__(self, *exc: object) -> None:
        TRACE_EVENTS.remove(self.events)
        self.deferred.end()
        self._watch.end()
        output = self.tx.output
        RECORDERS.of(output).remove(self)
        output.variable_tracker_cache.recorders.remove(self)  # type: ignore[attr-defined]
        output.signature_cache = {**output.signature_cache, **self._outer_signatures}
        own = output.current_tracer.traced_sources
        self.sources.update(own)
        self._outer_sources.update(own)
        output.current_tracer.traced_sources = self._outer_sources

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """What is read meanwhile is not what the call reads."""
        tracer = self.tx.output.current_tracer
        sources, reached, traced = OrderedSet(self.sources), set(self.events.reached), tracer.traced_sources
        tracer.traced_sources = type(traced)()
        try:
            yield
        finally:
            self.sources, tracer.traced_sources = sources, traced
            self.events.reached.intersection_update(reached)

    def load(self, item: VariableTracker, name: str, value: VariableTracker) -> VariableTracker:
        """Hears that ``item`` is bound to ``value``; returns what the call gets to see."""
        if not _stands_for(value, self.before.get(item, {}).get(name)):
            return value  # bound by the call itself
        if isinstance(item, (NewGlobalVariable, CellVariable)):
            held = self.deferred.load_bound(item, name, value)
            if held is not value:
                return held
        self.read_pending.append(item)
        return value

    def _count(self) -> tuple[int, ...]:
        """Effects that go through no door of their own."""
        output = self.tx.output
        return (
            len(output.side_effects.tensor_hooks),
            len(output.side_effects.save_for_backward),
            len(output.random_calls),
            len(output.root_tx.debug_locals),
        )

    @property
    def has_other_effects(self) -> bool:
        """Whether the call left an effect that is no change of an object: a hook, a random number."""
        return self._count() != self._counts

    def adopt(self, sources: Iterable[Source], read: Iterable[VariableTracker]) -> None:
        """Takes over what a call that was stamped out inside this one would have read."""
        self.sources.update(sources)
        # What can never be changed is no pending state.
        self.read_pending += [t for t in read if t.source is None and t.mutation_type is not None]

    def changed_autograd_state(self, tracker: VariableTracker) -> bool:
        """Whether the call changed that or how autograd records a tensor that it read."""
        before = self._autograd.get(id(tracker))
        if before is None and tracker.source is not None:
            try:
                before = autograd_state(resolver(self.tx)(tracker.source))
            except Exception:
                return False  # the frame made it: an argument, whose state is in the fingerprint
        return before is not None and before != _autograd_state(tracker)

    def made_since(self) -> set[int]:
        """ids of the trackers of the objects that the call made."""
        known, side_effects = set(map(id, self._known)), self.tx.output.side_effects
        return {id(t) for t in side_effects.id_to_variable.values() if id(t) not in known}

    def looked_at(self) -> list[Source]:
        """Sources that the call asked for, but for those that are still lazy."""
        cache = self.tx.output.variable_tracker_cache
        return [s for s in self.sources if (tracker := dict.get(cache, s)) is None or tracker.is_realized()]

    def read_objects(self) -> list[VariableTracker]:
        """Trackers of the objects that the call read, by a source or through pending state."""
        cache = self.tx.output.variable_tracker_cache
        found = [tracker for s in self.sources if (tracker := dict.get(cache, s)) is not None]
        return found + self.read_pending + self.loaded


def _autograd_state(tracker: Any) -> Any:
    value = tracker.proxy.node.meta.get("example_value")
    return None if value is None else autograd_state(value)


def _stands_for(value: VariableTracker, other: VariableTracker | None) -> bool:
    while value is not other and type(value) is DeferredConstant:
        value = value.held
    return value is other


def sources_held(trackers: Iterable[VariableTracker], unseen: bool = False) -> Iterator[Source]:
    """Sources of ``trackers`` and of what their containers hold; also of what is still lazy, if ``unseen``.

    What a container holds may be known by another source than the one it was reached by; both are yielded.
    """
    for tracker in _walk(trackers):
        if tracker.source is not None and (unseen or tracker.is_realized()):
            yield tracker.source


def reachable(trackers: Iterable[VariableTracker]) -> Iterator[VariableTracker]:
    """Trackers that can be reached from ``trackers`` through containers, themselves included, but for lazy ones."""
    return (tracker for tracker in _walk(trackers) if not issubclass(type(tracker), LazyVariableTracker))


def _walk(trackers: Iterable[VariableTracker]) -> Iterator[VariableTracker]:
    """``trackers`` and what they hold, each once: a lazy tracker, then what it stands for if that is known."""
    todo, seen = list(trackers), set()
    while todo:
        tracker = todo.pop()
        if id(tracker) in seen:
            continue
        seen.add(id(tracker))
        yield tracker
        if (found := tracker.unwrap()) is not tracker:
            todo.append(found)
        elif not issubclass(type(tracker), LazyVariableTracker):
            todo += _trackers_of(tracker)


def _trackers_of(tracker: VariableTracker) -> Iterator[VariableTracker]:
    """Trackers that ``tracker`` has, in whatever it keeps them.

    ``VariableTracker.visit`` leaves out keys of dicts, and asks objects of the program for their class.
    """
    todo = [value for name, value in vars(tracker).items() if name not in tracker._nonvar_fields]
    while todo:
        value = todo.pop()
        kind = type(value)  # ``isinstance`` asks an object of the program for its __class__
        if issubclass(kind, VariableTracker):
            yield value
        elif kind is HashableTracker:
            yield value.vt
        elif kind in (list, tuple):
            todo += value
        elif kind in (dict, collections.OrderedDict):
            todo += [*value, *value.values()]


def reached_otherwise(recorder: ReadSetRecorder, arguments: list[VariableTracker]) -> set[Source]:
    """Sources by which the call may have come in another way than by the tracker of an argument with that source.

    A body may be given ``model.layer`` and read ``model`` besides: then the source does not say what is the argument.
    """
    found = recorder.events.reached.union(sources_held(recorder.loaded, unseen=True))
    for tracker in (*arguments, *recorder.read_objects()):
        if (known := tracker.unwrap()).source is not None and known.is_realized():
            found.update(s for s in sources_held([known], unseen=True) if s != known.source)
    return found


def pending(tx: InstructionTranslatorBase, trackers: list[VariableTracker]) -> VariableTracker | None:
    """The first of the existing objects behind ``trackers`` that the frame has changed, if any."""
    return changed_among(tx, reachable(trackers))


_BINDINGS = (NewGlobalVariable, CellVariable)


def changed_among(
    tx: InstructionTranslatorBase, trackers: Iterable[VariableTracker], but: Container[int] = ()
) -> VariableTracker | None:
    """The first of ``trackers`` that the frame has changed, if any.

    Those with an id in ``but`` don't count, nor do globals and cells: what they are bound to is in an entry's bucket.
    """
    side_effects = tx.output.side_effects
    for tracker in trackers:
        if tracker.mutation_type is None or tracker.source is None or (but and id(tracker) in but):
            continue
        # ``isinstance`` of a tracker asks whether it is a lazy one.
        if not issubclass(type(tracker), _BINDINGS) and side_effects.is_modified(tracker):
            return tracker
    return None
