"""Records what tracing a region call read and changed, whichever part of Dynamo served the read.

Note [A read set is everything behind the arguments]
A traced body depends on all that tracing it read.  Dynamo serves a read in many ways: it builds a tracker and makes a
guard, finds the tracker in a cache, finds an earlier guard, or reads the side effects.  Recording each of these ways
would miss the next one that Dynamo adds.  So the read set is not what was recorded, but all that may have been read:

- *Behind an argument* (at a source that begins with an argument's source): every guard and every tracker that exists,
  whether this call made it or the frame did before.  Each must hold again behind the new argument.  This is a little
  more than the call read, and never less.  Where the frame made all guards of a source before, and the call did not
  ask for the source, the frame must have made these guards for the other call too.  So a reuse adds no guard that
  tracing would not.
- *Elsewhere*: such a source is the same in every call, and so is the real object there.  Only pending changes by the
  frame can make a difference.  So the entry keeps the objects that the call read (``ReadSetRecorder.read_objects``),
  and a pending change of one of them refuses reuse.

Tracing also reads state that no guard covers: a module's hooks, an object's own attributes, and which sources lead to
the same object.  Reuse compares that state as well.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch._dynamo.regions.frame import HOLDERS
from torch._dynamo.regions.trace.containers import INDEXED, Watch
from torch._dynamo.regions.trace.deferred import DeferredConstant
from torch._dynamo.regions.trace.deferred_values import DeferredValues
from torch._dynamo.regions.trace.element_stores import Contents
from torch._dynamo.regions.trace.events import RECORDERS, TRACE_EVENTS, TraceEvents
from torch._dynamo.regions.trace.state import autograd_state
from torch._dynamo.regions.trace.substitution import bare, chain_of, resolver
from torch._dynamo.source import AttrSource
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
    """Dynamo's cache of trackers by source, which reports each lookup to the recorders.

    A recorder also reads the tracer's ``traced_sources``, where Dynamo adds each source that it builds a tracker for.
    """

    def __init__(self, trackers: dict[Any, Any]) -> None:
        super().__init__(trackers)
        self.recorders: list[ReadSetRecorder] = []

    def get(self, source: Any, default: Any = None) -> Any:
        for recorder in self.recorders:
            recorder.sources.add(source)
        return super().get(source, default)


class ReadSetRecorder:
    """Records the reads and changes of one region call while it is traced; a ``Recorder`` of events.py."""

    def __init__(self, tx: InstructionTranslatorBase) -> None:
        self.tx = tx
        # Sources that the call looked up or that Dynamo built a tracker for, in that order.
        self.sources: OrderedSet[Source] = OrderedSet()
        # Reports from hooks that do not know the frame.
        self.events = TraceEvents()
        # Trackers whose pending attributes or cells were read, other than deferred constants.
        self.read_pending: list[VariableTracker] = []
        self.contents = Contents(tx, outermost=not RECORDERS.of(tx.output))
        self.deferred = DeferredValues(self, self.contents)
        HOLDERS.of(tx.output).extend((self, self.deferred, self.contents))
        # Contents of cells that the call read.
        self.loaded: list[VariableTracker] = []
        # Trackers that the call changed; ``save`` drops those that the call made.
        self.changed: list[VariableTracker] = []
        self._counts = self._count()
        # How many guards the frame had made before the call. The guards of a frame are in order.
        self.guards_before = len(tx.output.guards)
        # Trackers that Dynamo had before the call, kept alive so that ids are not reused.
        self._known = list(tx.output.side_effects.id_to_variable.values())
        # tracker -> name -> the value that the frame had bound the name to before the call
        self.before = {item: dict(stored) for item, stored in tx.output.side_effects.store_attr_mutations.items()}
        # ids of the trackers whose contents the frame had changed before the call
        self.changed_before = {id(t) for t in self._known if tx.output.side_effects.is_modified(t)}
        # id of a tensor's tracker -> its autograd state before the call
        self._autograd = {id(t): _autograd_state(t) for t in self._known if isinstance(t, TensorVariable)}

    def __enter__(self) -> ReadSetRecorder:
        output = self.tx.output
        if type(output.variable_tracker_cache) is not ReadingCache:
            output.variable_tracker_cache = ReadingCache(output.variable_tracker_cache)
        self._outer_sources = output.current_tracer.traced_sources
        output.current_tracer.traced_sources = type(self._outer_sources)()
        output.variable_tracker_cache.recorders.append(self)  # type: ignore[attr-defined]
        # A cached result of inspect.signature would hide the reads that it depends on.
        self._outer_signatures, output.signature_cache = output.signature_cache, {}
        recorders = RECORDERS.of(output)
        self._watch = Watch(self.tx, () if recorders else INDEXED.of(output).values())
        recorders.append(self)
        TRACE_EVENTS.append(self.events)
        self.contents.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        self.contents.end()
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
        tracer = self.tx.output.current_tracer
        sources, reached, traced = OrderedSet(self.sources), set(self.events.reached), tracer.traced_sources
        tracer.traced_sources = type(traced)()
        try:
            yield
        finally:
            self.sources, tracer.traced_sources = sources, traced
            self.events.reached.intersection_update(reached)

    def load(self, item: VariableTracker, name: str, value: VariableTracker) -> VariableTracker:
        if not _stands_for(value, self.before.get(item, {}).get(name)):
            return value  # the call itself bound it
        if isinstance(item, (NewGlobalVariable, CellVariable)):
            held = self.deferred.load_bound(item, name, value)
            if held is not value:
                return held
        self.read_pending.append(item)
        return value

    def _count(self) -> tuple[int, ...]:
        """Counts of the effects that no hook reports."""
        output = self.tx.output
        return (
            len(output.side_effects.tensor_hooks),
            len(output.side_effects.save_for_backward),
            len(output.random_calls),
            len(output.root_tx.debug_locals),
        )

    @property
    def has_other_effects(self) -> bool:
        """Whether the call had an effect that is no change of an object: a hook, a random number."""
        return self._count() != self._counts

    def adopt(
        self,
        sources: Iterable[Source],
        read: Iterable[VariableTracker],
        hashed: Iterable[Source],
        pending: Iterable[VariableTracker],
    ) -> None:
        self.contents.give_up()
        self.sources.update(sources)
        self.events.hashed.update(hashed)
        # A tracker that cannot be changed has no pending state.
        self.read_pending += [t for t in read if t.source is None and t.mutation_type is not None]
        self.read_pending += pending

    def changed_autograd_state(self, tracker: VariableTracker) -> bool:
        """Whether the call changed a tensor's autograd state: whether autograd records it, and how."""
        before = self._autograd.get(id(tracker))
        if before is None and tracker.source is not None:
            try:
                before = autograd_state(resolver(self.tx)(tracker.source))
            except Exception:
                return False  # the frame made the tensor: it is an argument, and the fingerprint holds its state
        return before is not None and before != _autograd_state(tracker)

    def made_since(self) -> set[int]:
        """ids of the trackers that were made since the call began."""
        known, side_effects = set(map(id, self._known)), self.tx.output.side_effects
        return {id(t) for t in side_effects.id_to_variable.values() if id(t) not in known}

    def looked_at(self) -> list[Source]:
        """The sources that the call looked up, without those whose trackers are still lazy."""
        cache = self.tx.output.variable_tracker_cache
        trackers = ((s, dict.get(cache, s)) for s in self.sources)
        return [s for s, t in trackers if (not self._is_unread_cell(s) if t is None else t.is_realized())]

    def _is_unread_cell(self, source: Any) -> bool:
        """Whether ``source`` is that of what a cell holds, and its tracker is lazy: Dynamo notes the cell's load."""
        if type(source) is not AttrSource or source.member != "cell_contents":
            return False
        try:
            cell = resolver(self.tx)(source.base)
        except Exception:
            return False  # the frame made the cell
        side_effects = self.tx.output.side_effects
        tracker = side_effects.id_to_variable.get(id(cell))
        held = tracker.pre_existing_contents if type(tracker) is CellVariable else None
        return held is not None and not held.is_realized()

    def read_objects(self) -> list[VariableTracker]:
        """The trackers of the objects that the call read, by a source or through pending state."""
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
    """Sources of ``trackers`` and of what they hold; with ``unseen``, also of trackers that are still lazy.

    Yields both sources of an element that Dynamo knows by another source than the one that reached it.
    """
    for tracker in _walk(trackers):
        if tracker.source is not None and (unseen or tracker.is_realized()):
            yield tracker.source


def hashed_by(recorder: ReadSetRecorder, read: Iterable[VariableTracker]) -> set[Source]:
    """Sources of the functions and classes that are keys, of the containers in ``read`` or of a lookup.

    Dynamo hashes such a key without building it, so no tracker and no guard shows which object it is.
    """
    found = set(recorder.events.hashed)
    for tracker in reachable(read):
        for value in vars(tracker).values():
            if type(value) is dict:
                keys = (key.vt for key in value if type(key) is HashableTracker)
                found.update(k.source for k in keys if k.source is not None and not k.is_realized())
    return found


def reachable(trackers: Iterable[VariableTracker], closed: Container[int] = ()) -> Iterator[VariableTracker]:
    """``trackers`` and all that is reachable from them through containers, without lazy trackers.

    What the trackers with ids in ``closed`` hold is left out, unless it is reached otherwise.
    """
    return (tracker for tracker in _walk(trackers, closed) if not issubclass(type(tracker), LazyVariableTracker))


def _walk(trackers: Iterable[VariableTracker], closed: Container[int] = ()) -> Iterator[VariableTracker]:
    """``trackers`` and what they hold, each once.  A lazy tracker is followed by its realized one, if any."""
    todo, seen = list(trackers), set()
    while todo:
        tracker = todo.pop()
        if id(tracker) in seen:
            continue
        seen.add(id(tracker))
        yield tracker
        if (found := tracker.unwrap()) is not tracker:
            todo.append(found)
        elif not issubclass(type(tracker), LazyVariableTracker) and id(tracker) not in closed:
            todo += _trackers_of(tracker)


def _trackers_of(tracker: VariableTracker) -> Iterator[VariableTracker]:
    """The trackers in the fields of ``tracker``.

    Unlike ``VariableTracker.visit``, includes keys of dicts, and does not read ``__class__`` of the program's objects.
    """
    todo = [value for name, value in vars(tracker).items() if name not in tracker._nonvar_fields]
    while todo:
        value = todo.pop()
        kind = type(value)  # ``isinstance`` would read __class__ of a program's object
        if issubclass(kind, VariableTracker):
            yield value
        elif kind is HashableTracker:
            yield value.vt
        elif kind is list or kind is tuple:
            todo += value
        elif kind is dict or kind is collections.OrderedDict:
            todo += [*value, *value.values()]


def reached_otherwise(recorder: ReadSetRecorder, arguments: list[VariableTracker]) -> set[Source]:
    """Sources that the call may have reached by another path than the tracker of an argument with that source.

    A body may take ``model.layer`` and also read ``model``.  Then the source ``model.layer`` may mean the argument or
    the attribute of ``model``.
    """
    found = recorder.events.reached.union(sources_held(recorder.loaded, unseen=True))
    for tracker in (*arguments, *recorder.read_objects()):
        if (known := tracker.unwrap()).source is not None and known.is_realized():
            # A module has two sources, of which one has a wrapper.  What is behind a module, as a method, may hold it.
            found.update(set(map(bare, sources_held([known], unseen=True))).difference(chain_of(known.source)))
    return found


_BINDINGS = (NewGlobalVariable, CellVariable)


def changed_among(
    tx: InstructionTranslatorBase, trackers: Iterable[VariableTracker], but: Container[int] = ()
) -> VariableTracker | None:
    """The first of ``changes_among``, if any."""
    return next(changes_among(tx, trackers, but), None)


def changes_among(
    tx: InstructionTranslatorBase, trackers: Iterable[VariableTracker], but: Container[int] = ()
) -> Iterator[VariableTracker]:
    """The trackers of existing objects in ``trackers`` that the frame has changed.

    Leaves out ids in ``but``, and globals and cells: an entry's bucket holds what they are bound to.
    """
    side_effects = tx.output.side_effects
    for tracker in trackers:
        if tracker.mutation_type is None or tracker.source is None or (but and id(tracker) in but):
            continue
        # Not ``isinstance``, which treats lazy trackers specially.
        if not issubclass(type(tracker), _BINDINGS) and side_effects.is_modified(tracker):
            yield tracker
