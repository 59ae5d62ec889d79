"""Transport: rewrites sources along the argument substitution, and finds what stands at a source."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.source import (
    AttrSource,
    DictGetItemSource,
    DictSubclassGetItemSource,
    GetItemSource,
    LocalSource,
    NNModuleSource,
    ParamBufferSource,
    UnspecializedBuiltinNNModuleSource,
    UnspecializedNNModuleSource,
    UnspecializedParamBufferSource,
)
from torch._guards import ChainedSource, Source


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


def root_of(source: Source, roots: Iterable[Source]) -> Source | None:
    """The nearest of ``roots`` that ``source`` begins with, itself included; None when there is none."""
    at: Source | None = source
    while at is not None:
        if at in roots:
            return at
        at = at.base if isinstance(at, ChainedSource) else None
    return None


def bare(source: Source) -> Source:
    """``source`` without what Dynamo adds to that of a module once it has looked at it."""
    while isinstance(source, NNModuleSource):
        source = source.base
    return source


UNKNOWN: Any = object()


class Place:
    """What is known, in one call, of a source of an earlier one."""

    __slots__ = ("fate", "moves", "new", "same", "source", "tracker", "value")

    def __init__(self, source: Source, new: Source | None, moves: bool) -> None:
        # Kept, so that its id is not used again.
        self.source = source
        # The source in this call; None as long as nobody has asked for it.
        self.new = new
        # Whether that is another one.
        self.moves = moves
        # What stands there in this call.
        self.value = UNKNOWN
        self.fate: Fate | None = None
        # Whether the earlier call found the very same object.
        self.same = False
        # What was built of it.
        self.tracker: VariableTracker | None = None


class Transport:
    """Rewrites sources: what began with an old root begins with the new one.

    An entry asks for the same sources in each call, so they are found by id: a source's hash is slow.
    """

    def __init__(self, roots: dict[Source, Source]) -> None:
        # old root -> new root
        self._roots = dict(roots)
        # id of a source -> its place
        self._places: dict[int, Place] = {}

    def __call__(self, source: Source) -> Source:
        return self.of(self.place(source))

    def of(self, place: Place) -> Source:
        """The source in this call."""
        if place.new is None:
            source: Any = place.source
            if not place.moves:
                place.new = source
            elif type(source) in _PLAIN:
                place.new = _behind(source, self(source.base))
            else:
                parts = {name: self(part) for name, part in _parts(source).items()}
                place.new = dataclasses.replace(source, **parts)
        return place.new

    def place(self, source: Source) -> Place:
        place = self._places.get(id(source))
        if place is None:
            root = self._roots.get(source)
            if root is not None:
                moves = root != source
            elif type(source) in _BASE_ALONE:
                moves = self.place(source.base).moves  # type: ignore[attr-defined]
            else:
                moves = any(self.place(part).moves for part in _parts(source).values())
            place = self._places[id(source)] = Place(source, root, moves)
        return place

    def take(self, source: Source, moves: bool) -> Place:
        """The place of a source of which is known whether it is another one in this call."""
        place = self._places.get(id(source))
        if place is None:
            place = self._places[id(source)] = Place(source, None, moves)
        return place

    def add(self, old: Source, new: Source) -> bool:
        """Adds a root; false when it is one already, with another end."""
        if old not in self._roots:
            self._roots[old] = new
            self._places.clear()
        return self._roots[old] == new


def _parts(source: Source) -> dict[str, Source]:
    """The sources that ``source`` is made of: its base, and maybe others, as the key of a dict."""
    if not isinstance(source, ChainedSource):
        return {}
    kind: Any = type(source)
    found = ((name, getattr(source, name)) for name in _field_names(kind))
    return {name: part for name, part in found if isinstance(part, Source)}


# Most sources are of these kinds.
_BASE_ALONE = (AttrSource, UnspecializedParamBufferSource, UnspecializedNNModuleSource, NNModuleSource)


_PLAIN = (*_BASE_ALONE, UnspecializedBuiltinNNModuleSource)


def _behind(source: Source, base: Source) -> Source:
    """``source`` with another base.  Not checked anew, and nothing but its fields is taken over."""
    kind: Any = type(source)
    made = object.__new__(kind)
    fields = vars(source)
    vars(made).update({name: fields[name] for name in _field_names(kind)}, base=base)
    return made


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def resolver(tx: InstructionTranslatorBase) -> Resolver:
    """The frame's: Dynamo leaves what the program changes as it is until the frame is compiled."""
    calls = tx.output.region_tracker.calls
    if calls.resolver is None:
        calls.resolver = Resolver(tx)
    return calls.resolver


class Resolver:
    """Finds the real value at a source, as it was when the frame began.

    The common kinds of sources are followed as they are; none of their text is evaluated.
    """

    def __init__(self, tx: InstructionTranslatorBase) -> None:
        root = tx.output.root_tx
        self._globals: Any = {"G": root.f_globals, "L": root.f_locals}
        # source -> its value; filled along the way, since sources share their beginnings.
        self._values: dict[Source, Any] = {}
        # id of a source -> the source, so that its id is not used again, and its value; a source's hash is slow
        self._by_id: dict[int, tuple[Source, Any]] = {}

    def __call__(self, source: Source) -> Any:
        """Raises what following the source raises: there may be nothing there."""
        known = self._by_id.get(id(source))
        if known is not None:
            return known[1]
        value = self._values.get(source, UNKNOWN)
        if value is UNKNOWN:
            value = _follow(source, self)
            self._values[source] = value = self._find(source) if value is UNKNOWN else value
        self._by_id[id(source)] = source, value
        return value

    def _find(self, source: Any) -> Any:
        if type(source) is LocalSource:
            return self._globals["L"][source.local_name]
        if isinstance(source, (DictGetItemSource, DictSubclassGetItemSource)):
            return item_of(self(source.base), self(source.index) if isinstance(source.index, Source) else source.index)
        if isinstance(source, ChainedSource):
            self(source.base)
        return source.get_value(self._globals, {}, self._values)


class Step(enum.Enum):
    """How a source comes of its base."""

    ATTRIBUTE = enum.auto()
    ITEM = enum.auto()
    SAME = enum.auto()  # another name for the same thing
    UNUSUAL = enum.auto()  # of its base alone
    OTHER = enum.auto()


_ATTRIBUTES = (AttrSource, ParamBufferSource, UnspecializedParamBufferSource)


def step_of(source: Any) -> tuple[Step, Any]:
    """How ``source`` comes of its base, and by which name or index."""
    kind = type(source)
    if kind in _ATTRIBUTES:
        return Step.ATTRIBUTE, source.member
    if kind is DictGetItemSource and not isinstance(source.index, Source):
        return Step.ITEM, source.index
    if kind is GetItemSource and not source.index_is_slice:
        return Step.ITEM, source.index
    if isinstance(source, NNModuleSource):
        return Step.SAME, None
    return (Step.UNUSUAL if list(_parts(source)) == ["base"] else Step.OTHER), None


def _follow(source: Any, at: Callable[[Source], Any]) -> Any:
    """What stands at a source of a common kind, given what stands at its base; ``UNKNOWN`` for other kinds."""
    step, key = step_of(source)
    if step in (Step.UNUSUAL, Step.OTHER):
        return UNKNOWN
    value = at(source.base)
    if step is Step.ATTRIBUTE:
        return attribute_of(value, key)
    return item_of(value, key) if step is Step.ITEM else value


def attribute_of(value: Any, name: str) -> Any:
    """As getattr, without running code of the user's: a property, or a ``__getattr__`` that counts.

    Raises AttributeError where that would be needed: what is found so has no source of this kind.
    """
    kind = type(value)
    if issubclass(kind, type):
        return getattr(value, name)
    own = getattr(value, "__dict__", {})
    if name in own:
        return own[name]
    for part in ("_parameters", "_buffers", "_modules") if isinstance(value, torch.nn.Module) else ():
        if name in (held := own.get(part, ())):
            return held[name]
    found = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), UNKNOWN)
    runs = getattr(kind, "__getattr__", None) if found is UNKNOWN else getattr(type(found), "__get__", None)
    of_users = isinstance(runs, types.FunctionType) and runs is not torch.nn.Module.__getattr__
    if of_users or isinstance(found, property):
        raise AttributeError(f"{kind.__name__} finds {name} by code of its own")
    return getattr(value, name)


def item_of(value: Any, key: Any) -> Any:
    """What ``value`` holds at ``key``.  To look is not to change: a defaultdict adds what it is asked for."""
    if not isinstance(value, dict):
        return value[key]
    found = dict.get(value, key, UNKNOWN)
    if found is UNKNOWN:
        raise KeyError(key)
    return found


class Fate(enum.Enum):
    """What tracing a call makes of a source that is another than in the earlier call."""

    UNCHANGED = enum.auto()  # it is the same source
    OWN = enum.auto()  # it is looked at, and guarded
    KNOWN = enum.auto()  # its object is known by another source: guarded to be that object
    BEHIND_KNOWN = enum.auto()  # behind such an object, and guarded there


class Fates:
    """The fates of sources in one call: which guards of an earlier call it has, and which are to be checked."""

    def __init__(self, tx: InstructionTranslatorBase, transport: Transport, resolve: Resolver) -> None:
        self.transport = transport
        self.resolve = resolve
        self._trackers = tx.output.side_effects.id_to_variable
        self._stamped = tx.output.region_tracker.calls.stamped

    def __call__(self, source: Source) -> Fate:
        """Raises what following the source raises."""
        return self.look(source).fate  # type: ignore[return-value]

    def may_differ(self, source: Source) -> bool:
        """Whether there may be something else at ``source``; false behind an object that both calls share."""
        return not self.look(source).same

    def value(self, source: Source) -> Any:
        """What stands in this call where ``source`` was in the earlier one.  Raises what following the source raises.

        No source is made for it: most of what is looked at needs none.
        """
        place = self.transport.place(source)
        if place.value is UNKNOWN:
            value = UNKNOWN if place.new is not None or not place.moves else _follow(source, self.value)
            place.value = self.resolve(self.transport(source)) if value is UNKNOWN else value
        return place.value

    def behind_known(self, source: Source) -> Source:
        """The source that tracing the call would look at what is behind a known object by."""
        fate = self(source)
        if fate is Fate.BEHIND_KNOWN and isinstance(source, ChainedSource):
            new = self.transport(source)
            if not isinstance(new, ChainedSource) or new.base != self.transport(source.base):
                return new
            return dataclasses.replace(new, base=self.behind_known(source.base))
        if fate is Fate.KNOWN:
            return self.known(self.value(source)) or source
        return self.transport(source)

    def known(self, value: Any) -> Source | None:
        """The source that an object is known by: through its tracker, or where a call was stamped out that met it."""
        tracker = self._trackers.get(id(value))
        if tracker is not None:
            return tracker.source
        fates, source = self._stamped.get(id(value), (None, None))
        return None if fates is None or source is None else fates.transport(source)

    def remember(self, sources: Iterable[Source]) -> None:
        """Lets the objects at ``sources`` be known to later calls, as if this one were traced."""
        for source in sources:
            if self(source) is Fate.OWN:
                self._stamped.setdefault(id(self.value(source)), (self, source))

    def look(self, source: Source) -> Place:
        """What is known of ``source`` in this call.  Raises what following the source raises."""
        place = self.transport.place(source)
        if place.fate is None:
            self._settle_alone(place)
        return place

    def _settle_alone(self, place: Place) -> None:
        source = place.source
        if not place.moves:
            place.fate, place.same = Fate.UNCHANGED, True
            return
        value = self.value(source)
        same = value is self.resolve(source) and has_identity(value)
        self.settle(place, self.look(source.base) if isinstance(source, ChainedSource) else None, same)

    def settle(self, place: Place, above: Place | None, same: bool) -> None:
        """Finds the fate of a place that moves, behind ``above``; ``same``: whether it is the earlier call's object."""
        place.same = same
        if above is not None and above.fate in _AT_KNOWN:
            place.fate, place.same = Fate.BEHIND_KNOWN, same or above.same
            return
        if not same:
            known = self.known(place.value)
            same = known is not None and has_identity(place.value) and known.name != self.transport(place.source).name
        place.fate = Fate.KNOWN if same else Fate.OWN


_AT_KNOWN = (Fate.KNOWN, Fate.BEHIND_KNOWN)


# What can be changed, though it has no __dict__. Iterators are: asking for the next item changes them.
_CHANGEABLE = (torch.Tensor, list, dict, set, bytearray, type, types.CellType, collections.deque, Iterator)


def has_identity(value: Any) -> bool:
    """Whether it matters which of several equal objects ``value`` is: something may change it."""
    kind: Any = type(value)
    return isinstance(value, _CHANGEABLE) or hasattr(value, "__dict__") or _has_slots(kind)


@functools.cache
def _has_slots(kind: Any) -> bool:
    """Whether objects of this class keep what they are in slots."""
    return any(vars(base).get("__slots__") for base in kind.__mro__)
