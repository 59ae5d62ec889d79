"""Containers that a call indexes with a deferred constant: finding the element, and watching the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch._dynamo.regions.frame import PerFrame
from torch._dynamo.regions.trace.deferred import DEFERRED_TYPES
from torch._dynamo.regions.trace.expressions import Expression
from torch._dynamo.regions.trace.substitution import Resolver, resolver
from torch._dynamo.source import DictGetItemSource, GetItemSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.hashable import HashableTracker
from torch._dynamo.variables.lazy import LazyCache, LazyConstantVariable, LazyVariableTracker
from torch._dynamo.variables.lists import ListVariable


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source


@dataclasses.dataclass
class SubscriptPath:
    """An element that was found in a container by a deferred index."""

    container: Source
    holder: VariableTracker
    index: Expression
    element: Source
    # What the container holds there. The call must read it by this path only: otherwise nothing tells which of the
    # reads at ``element`` are at another index in another call.
    seen: VariableTracker


# Trackers of plain lists and dicts.
CONTAINERS = (ListVariable, ConstDictVariable)
_LAZY = (LazyVariableTracker, LazyConstantVariable)
# id -> container that was indexed with a deferred constant.
INDEXED: PerFrame[dict[int, VariableTracker]] = PerFrame(lambda _: {})


def element_at(tx: InstructionTranslatorBase, container: Any, key: Any, watched: bool) -> VariableTracker | None:
    """The element at ``key`` of a container with a source, if the element is untouched and still lazy.

    Only of an unchanged container, unless the call's elements are ``watched`` (element_stores.py).
    """
    if container.source is None or (tx.output.side_effects.is_modified(container) and not watched):
        return None
    found: Any = untouched_at(container, key)
    if found is None or type(found) not in _LAZY or found.is_realized():
        return None
    known = tx.output.side_effects.id_to_variable.get(id(found.original_value()))
    if known is not None and (known.source is None or known.source.name != found.original_source().name):
        return None  # Dynamo knows it by another source
    return found


def untouched_at(container: Any, key: Any) -> VariableTracker | None:
    """The element at ``key`` of a list or dict with a source, if that is the one of when the frame began; else None."""
    found = held_at(container, key)
    if found is None:
        return None
    source: Any = found.unwrap().source if type(found) not in _LAZY or found.is_realized() else found.original_source()
    if type(source) not in (GetItemSource, DictGetItemSource) or source.base != container.source:
        return None
    return found if type(source.index) is type(key) and source.index == key else None


def held_at(container: Any, key: Any) -> Any:
    """The tracker at ``key``, an int or str, of a plain list or dict; None for any other key or container."""
    if type(container) is ListVariable and type(key) is int:
        items = items_of(container)
        return items[key] if 0 <= key < len(items) else None
    if type(container) is ConstDictVariable and type(key) in (int, str):
        return items_of(container).get(HashableTracker(ConstantVariable.create(key)))
    return None


def items_of(container: Any) -> Any:
    """What a list or dict holds now; reading it here is no read of the program's."""
    return object.__getattribute__(container, "__dict__")["items"]


class Watch:
    """Replaces realized elements of containers by lazy trackers while a call is traced."""

    def __init__(self, tx: InstructionTranslatorBase, containers: Iterable[Any]) -> None:
        # (container, its trackers by index, the lazy ones in their place)
        self._kept: list[tuple[Any, dict[Any, VariableTracker], dict[Any, VariableTracker]]] = []
        resolve = resolver(tx)
        for container in containers:
            kept = dict(elements(container))
            lazy = {index: _lazy(container, plain_key(index), found, resolve) for index, found in kept.items()}
            _put(container, lazy)
            self._kept.append((container, kept, lazy))

    def end(self) -> None:
        """Puts the original trackers back, except where the call has put others."""
        for container, kept, lazy in self._kept:
            now = dict(elements(container))
            _put(container, {index: kept[index] for index in now if index in lazy and now[index] is lazy[index]})


def elements(container: Any) -> Iterable[tuple[Any, VariableTracker]]:
    items = items_of(container)
    return enumerate(items) if type(container) is ListVariable else items.items()


def _put(container: Any, trackers: dict[Any, VariableTracker]) -> None:
    items = items_of(container)
    for index, tracker in trackers.items():
        items[index] = tracker


def plain_key(index: Any) -> Any:
    """An index of ``elements`` as the program writes it; None for a key that is no constant."""
    if type(index) is not HashableTracker:
        return index
    return index.vt.value if type(index.vt) is ConstantVariable else None


def _lazy(container: Any, index: Any, found: VariableTracker, resolve: Resolver) -> VariableTracker:
    """A lazy tracker of the same value; ``found`` itself if it is still lazy or not an untouched element."""
    if not found.is_realized() or untouched_at(container, index) is not found:
        return found
    source: Any = found.unwrap().source
    value = resolve(source)
    return lazy_tracker(LazyConstantVariable if type(value) in DEFERRED_TYPES else LazyVariableTracker, value, source)


def lazy_tracker(kind: Any, value: Any, source: Source) -> VariableTracker:
    return kind(LazyCache(value, source), source=source)
