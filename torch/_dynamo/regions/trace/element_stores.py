"""What a call reads and stores of lists and dicts that it touches by their elements only.

Note [A store of an element]
A layer that keeps its state in a container of all layers (``cache[i] = new``, ``is_updated[self.layer_idx] = True``)
changes the container in each call.  A layer that reads the whole container (its length, its keys, all of its elements)
sees what the layers before have stored.  One that reads the element at its own index does not.  So calls of such a
layer are alike if each touches the container *by its elements*: it reads elements at an index, and stores to elements
at an index, where the index is a plain constant or a deferred one.

- All of Dynamo reads and changes what a list or dict holds through the attribute ``items`` of its tracker, or through
  the tracker's ``__dict__``.  While a call is traced, ``Contents`` notes the trackers of which either is taken.  Only
  ``DeferredValues`` reads and stores elements without a note.
- An element that is read must be *untouched*: the tracker that Dynamo made for it when the frame began, at the same
  index.  So its source tells what it is, whatever else the frame has changed in the container.
- A key that is not there is read too (``get`` gives the default), if the frame has changed the dict: Dynamo has then
  guarded all keys.
- What the call reads of a container that it has stored to is what it stored last, at the same index; any other read is
  noted.  So no call depends on whether two of its indices are equal.
- To append is no read either.  A list that the call only appends to, and that is no argument, is the same list for each
  call: the call's effect is to append.
- Noting starts with the frame's second traced call, once a first one has stored: few programs do.  It ends where an
  inner call is stamped out, since nothing notes what that call would have read.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._dynamo.regions.frame import PerFrame
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.trace.containers import CONTAINERS, SubscriptPath, held_at, items_of, untouched_at
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import ListVariable


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source


_CONTENTS = frozenset({"items", "__dict__"})
# Whether a call of the frame has stored to an element of a container that the frame did not make.
_STORES: PerFrame[list[bool]] = PerFrame(lambda _: [])


class ElementStore(NamedTuple):
    """A value that the call stores at an index of a container that exists when the frame begins."""

    container: VariableTracker
    # An Expression or a plain constant.
    index: Any
    value: VariableTracker


class ElementRead(NamedTuple):
    """An index at which the call finds an untouched element or none, other than by a SubscriptPath."""

    container: VariableTracker
    # An Expression or a plain constant.
    index: Any
    is_there: bool


class Touched(NamedTuple):
    """The containers that a call touches by their elements only, and its indices other than those of SubscriptPaths."""

    containers: list[Any]
    # Source of the container, index, and whether an element is there.
    reads: list[tuple[Any, Any, bool]]
    stores: list[tuple[Any, Any]]


class Contents:
    """Notes the lists and dicts whose contents the call reads or changes in another way than by an element."""

    def __init__(self, tx: InstructionTranslatorBase, outermost: bool) -> None:
        self._calls_store = _STORES.of(tx.output)
        self.is_on = outermost and bool(self._calls_store)
        # Whether it notes what the call touches, for whatever purpose.
        self._notes = self.is_on or (outermost and has_pending(tx))
        # Whether the call is the first one of the frame that stores.
        self.is_first = False
        self.stores: list[ElementStore] = []
        self.reads: list[ElementRead] = []
        # id -> (list, what the call appended): lists that existed when the call began, and those that it made
        self._appended: dict[int, tuple[VariableTracker, list[VariableTracker]]] = {}
        # id -> container, kept alive so that ids are not reused
        self._noted: dict[int, VariableTracker] = {}
        self._restore = contextlib.ExitStack()

    def begin(self) -> None:
        if not self._notes:
            return
        for kind in CONTAINERS:
            self._replace(kind, "__getattribute__", _noting(self._noted, kind.__getattribute__))
        self._replace(ListVariable, "call_method", _appending(self, ListVariable.call_method))

    def _replace(self, kind: type, name: str, method: Any) -> None:
        self._restore.callback(_put, kind, name, vars(kind).get(name))
        _put(kind, name, method)

    def end(self) -> None:
        self._restore.close()

    def give_up(self) -> None:
        """No container counts as touched by elements only: something else may have read any of them."""
        self.is_on = self._notes = False

    def append(
        self, held: VariableTracker, value: VariableTracker, call: Callable[[], VariableTracker]
    ) -> VariableTracker:
        """The result of ``call``, which appends ``value`` to the list ``held``."""
        if not self._notes:
            return call()
        self._appended.setdefault(id(held), (held, []))[1].append(value)
        with self.unnoted(held):
            return call()

    def appends(self, changed: list[VariableTracker]) -> list[tuple[VariableTracker, list[VariableTracker]]]:
        """Each list that the call has only appended to, and what.

        ``changed`` has a tracker as often as the call has changed it.
        """
        times = collections.Counter(map(id, changed))
        untouched = (each for number, each in self._appended.items() if self._notes and number not in self._noted)
        return [(held, values) for held, values in untouched if times[id(held)] == len(values)]

    def notes_from_now_on(self) -> bool:
        """Whether this call was not watched, and the next one is."""
        if self._notes or self._calls_store:
            return False
        self._calls_store.append(True)
        return True

    def can_store(self, container: VariableTracker) -> bool:
        """Whether a store to an element of ``container`` can be repeated; from now on, such stores are watched."""
        if not _is_of_program(container):
            return False
        if not self._calls_store:
            self._calls_store.append(True)
            self.is_first = True
        return self.is_by_element(container)

    @contextlib.contextmanager
    def unnoted(self, container: VariableTracker) -> Iterator[None]:
        known = id(container) in self._noted
        yield
        if not known:
            self._noted.pop(id(container), None)

    def last_store(self, container: VariableTracker) -> ElementStore | None:
        return next((store for store in reversed(self.stores) if store.container is container), None)

    def is_by_element(self, container: VariableTracker) -> bool:
        """Whether the call touches ``container`` by its elements only, so far."""
        touched = id(container) in self._noted or id(container) in self._appended
        return self.is_on and not touched and _is_of_program(container)

    def may_have_touched(self, container: VariableTracker) -> bool:
        """Whether the call may have read or changed what ``container`` holds."""
        return not self._notes or id(container) in self._noted

    def by_element(self, paths: list[SubscriptPath], leaves: list[Any]) -> dict[int, VariableTracker]:
        """id -> container that the call has touched by its elements only: on ``paths``, as an argument, or else."""
        found = [path.holder for path in paths] + [each.container for each in (*self.stores, *self.reads)]
        found += [leaf.tracker.unwrap() for leaf in leaves if leaf.sources]
        return {id(container): container for container in found if self.is_by_element(container)}

    def touched(self, by_element: dict[int, VariableTracker]) -> Touched:
        reads = [(read.container.source, read.index, read.is_there) for read in self.reads]
        by_index = (
            store for store in self.stores if id(store.container) in by_element
        )  # others are compared as wholes
        stores = [(store.container.source, store.index) for store in by_index]
        return Touched([container.source for container in by_element.values()], reads, stores)


def has_pending(tx: InstructionTranslatorBase) -> bool:
    """Whether the frame has changed an attribute of an object that existed when it began, or bound a global."""
    return any(tracker.source is not None for tracker in tx.output.side_effects.store_attr_mutations)


def _is_of_program(container: VariableTracker) -> bool:
    """Whether ``container`` is a plain list or dict that existed when the frame began."""
    return type(container) in CONTAINERS and container.source is not None


def is_watched(tx: InstructionTranslatorBase, container: VariableTracker) -> bool:
    """Whether a call's key leaves out what ``container``, an argument with a source, holds: changed elements too."""
    return _is_of_program(container) and bool(_STORES.of(tx.output))


def changed_argument(
    tx: InstructionTranslatorBase, leaves: list[Any], by_element: dict[int, Any]
) -> VariableTracker | None:
    """A container among the arguments that the frame has changed, and that the call does not touch by elements only."""
    found = (leaf.tracker.unwrap() for leaf in leaves if leaf.sources)
    watched = (t for t in found if is_watched(tx, t) and id(t) not in by_element)
    return next(filter(tx.output.side_effects.is_modified, watched), None)


def containers_by_element(
    tx: InstructionTranslatorBase, touched: Touched, at: Callable[[Source], Any], value: Callable[[Any], Any]
) -> dict[int, Any]:
    """id -> tracker of each of the containers of ``touched`` in another call, if Dynamo tracks it.

    ``at`` and ``value``: what stands in the place of a source and of an index.  Raises CannotReuse if one of these is
    not what the traced call found.
    """
    known = tx.output.side_effects.id_to_variable
    objects = {source: at(source) for source in touched.containers}
    trackers = {source: known.get(id(found)) for source, found in objects.items()}
    if odd := next((t for t in trackers.values() if t is not None and type(t) not in CONTAINERS), None):
        raise CannotReuse(ReuseMissReason.OBJECT_DIFFERS, type(odd).__name__)
    for source, index, is_there in touched.reads:
        container, key = trackers.get(source), value(index)
        if is_there:
            alike = container is None or untouched_at(container, key) is not None
        else:
            alike = container is not None and tx.output.side_effects.is_modified(container)
            alike = alike and type(key) in (int, str) and held_at(container, key) is None
        if not alike:
            raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, f"{source.name} at {index}")
    for source, index in touched.stores:
        held = objects[source] if trackers[source] is None else items_of(trackers[source])
        if not is_position(held, value(index)):
            raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"a store at {index} of {source.name}")
    return {id(container): container for container in trackers.values() if container is not None}


def _put(kind: type, name: str, method: Any) -> None:
    if method is None:
        delattr(kind, name)
    else:
        setattr(kind, name, method)


def _appending(contents: Contents, call: Callable[..., VariableTracker]) -> Callable[..., VariableTracker]:
    def call_method(self: Any, tx: Any, name: str, args: list[VariableTracker], kwargs: Any) -> VariableTracker:
        if name != "append" or len(args) != 1 or kwargs or type(self) is not ListVariable:
            return call(self, tx, name, args, kwargs)
        return contents.append(self, args[0], lambda: call(self, tx, name, args, kwargs))

    return call_method


def _is_being_made(fields: dict[str, Any]) -> bool:
    """Whether Dynamo still makes the tracker that has ``fields``: of a dict, it sets ``original_items`` last."""
    return "original_items" not in fields and "should_reconstruct_all" in fields


def _noting(noted: dict[int, Any], get: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def __getattribute__(self: Any, name: str) -> Any:
        if name in _CONTENTS and not _is_being_made(get(self, "__dict__")):
            noted[id(self)] = self
        return get(self, name)

    return __getattribute__


def is_position(items: Any, index: Any) -> bool:
    """Whether ``index`` is one of an element: in a list, of one that is there, and not negative."""
    if type(items) is list:
        return type(index) is int and 0 <= index < len(items)
    return type(items) is dict and type(index) in (int, str)
