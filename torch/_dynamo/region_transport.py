"""Transport: rewrites sources along the argument substitution, and finds what stands at a source."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.source import AttrSource, DictGetItemSource, GetItemSource, LocalSource, NNModuleSource
from torch._guards import ChainedSource, Source


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


def root_of(source: Source, roots: Iterable[Source]) -> Source | None:
    """The nearest of ``roots`` that ``source`` begins with, itself included; None when there is none."""
    at: Source | None = source
    while at is not None:
        if at in roots:
            return at
        at = at.base if isinstance(at, ChainedSource) else None
    return None


class Transport:
    """Rewrites sources: what began with an old root begins with the new one."""

    def __init__(self, roots: dict[Source, Source]) -> None:
        # old source -> new source
        self._known: dict[Source, Source] = dict(roots)

    def __call__(self, source: Source) -> Source:
        found = self._known.get(source)
        if found is None:
            found = self._known[source] = self._rewrite(source)
        return found

    def add(self, old: Source, new: Source) -> bool:
        """Adds a root; false when it is one already, with another end."""
        return self._known.setdefault(old, new) == new

    def _rewrite(self, source: Source) -> Source:
        if not isinstance(source, ChainedSource):
            return source
        # A source may hold others besides its base: the key of a dict, say.
        changes = {}
        kind: Any = type(source)
        for name in _field_names(kind):
            part = getattr(source, name)
            if isinstance(part, Source) and (new := self(part)) is not part:
                changes[name] = new
        return dataclasses.replace(source, **changes) if changes else source


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

    def __call__(self, source: Source) -> Any:
        """Raises what following the source raises: there may be nothing there."""
        try:
            return self._values[source]
        except KeyError:
            value = self._values[source] = self._find(source)
            return value

    def _find(self, source: Any) -> Any:
        kind = type(source)
        if kind is LocalSource:
            return self._globals["L"][source.local_name]
        if kind is AttrSource:
            return getattr(self(source.base), source.member)
        if kind is DictGetItemSource and not isinstance(source.index, Source):
            return self(source.base)[source.index]
        if kind is GetItemSource and not source.index_is_slice:
            return self(source.base)[source.index]
        if isinstance(source, NNModuleSource):
            return self(source.base)
        if isinstance(source, ChainedSource):
            self(source.base)
        return source.get_value(self._globals, {}, self._values)


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
        # source -> its fate, and whether the earlier call found the very same object there
        self._known: dict[Source, tuple[Fate, bool]] = {}

    def __call__(self, source: Source) -> Fate:
        """Raises what following the source raises."""
        return self._look(source)[0]

    def may_differ(self, source: Source) -> bool:
        """Whether there may be something else at ``source``; false behind an object that both calls share."""
        return not self._look(source)[1]

    def behind_known(self, source: Source) -> Source:
        """The source that tracing the call would look at what is behind a known object by."""
        fate = self(source)
        if fate is Fate.BEHIND_KNOWN and isinstance(source, ChainedSource):
            new = self.transport(source)
            if not isinstance(new, ChainedSource) or new.base != self.transport(source.base):
                return new
            return dataclasses.replace(new, base=self.behind_known(source.base))
        if fate is Fate.KNOWN:
            known = self._trackers.get(id(self.resolve(self.transport(source))))
            return known.source if known is not None and known.source is not None else source
        return self.transport(source)

    def _look(self, source: Source) -> tuple[Fate, bool]:
        found = self._known.get(source)
        if found is None:
            found = self._known[source] = self._find(source)
        return found

    def _find(self, source: Source) -> tuple[Fate, bool]:
        new = self.transport(source)
        if new == source:
            return Fate.UNCHANGED, True
        value, old = self.resolve(new), self.resolve(source)
        same = has_identity(value) and value is old
        if isinstance(source, ChainedSource):
            fate, base_is_same = self._look(source.base)
            if fate in (Fate.KNOWN, Fate.BEHIND_KNOWN):
                return Fate.BEHIND_KNOWN, same or base_is_same
        known = self._trackers.get(id(value)) if has_identity(value) else None
        elsewhere = known is not None and known.source is not None and known.source.name != new.name
        return (Fate.KNOWN if same or elsewhere else Fate.OWN), same


def has_identity(value: Any) -> bool:
    """Whether it matters which of several equal objects ``value`` is."""
    return isinstance(value, (torch.Tensor, list, dict, set, type)) or hasattr(value, "__dict__")
