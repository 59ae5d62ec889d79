"""Transport: rewrites sources along the argument substitution, and finds what stands at a source."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch._dynamo.source import AttrSource, DictGetItemSource, GetItemSource, LocalSource, NNModuleSource

import torch
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

    def _rewrite(self, source: Source) -> Source:
        if not isinstance(source, ChainedSource):
            return source
        # A source may hold others besides its base: the key of a dict, say.
        changes = {}
        for field in dataclasses.fields(source):
            part = getattr(source, field.name)
            if isinstance(part, Source) and (new := self(part)) is not part:
                changes[field.name] = new
        return dataclasses.replace(source, **changes) if changes else source


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
    """What became of a source by transport."""

    UNCHANGED = enum.auto()  # it is the same source
    OWN = enum.auto()  # another source, with a value of its own
    SHARED = enum.auto()  # another source of the same object
    BEHIND_SHARED = enum.auto()  # behind an object that is the same in both calls


class Fates:
    """The fates of sources in one call: which guards of an earlier call are about something else here.

    What lies behind an object that both calls share is guarded by the earlier call's own source, as long as the
    object is the same; so tracing makes a guard for the object only.
    """

    def __init__(self, transport: Transport, resolve: Resolver) -> None:
        self.transport = transport
        self.resolve = resolve
        self._known: dict[Source, Fate] = {}

    def __call__(self, source: Source) -> Fate:
        """Raises what following the source raises."""
        found = self._known.get(source)
        if found is None:
            found = self._known[source] = self._find(source)
        return found

    def _find(self, source: Source) -> Fate:
        new = self.transport(source)
        if new is source:
            return Fate.UNCHANGED
        if isinstance(source, ChainedSource):
            base = self(source.base)
            if base in (Fate.SHARED, Fate.BEHIND_SHARED):
                return Fate.BEHIND_SHARED
        value = self.resolve(new)
        return Fate.SHARED if has_identity(value) and value is self.resolve(source) else Fate.OWN


def has_identity(value: Any) -> bool:
    """Whether it matters which of several equal objects ``value`` is."""
    return isinstance(value, (torch.Tensor, list, dict, set, type)) or hasattr(value, "__dict__")
