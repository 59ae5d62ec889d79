"""The way through all that a read set is about, each place behind the one that leads to it.

An entry is compared with many calls, and asks for the same sources each time. So the order in which they lead to each
other, and how, is found out once; for a call, one pass over them tells what stands there and what tracing would make
of it (``Fate``). Sources of unusual kinds are left to ``Fates``, which finds the same one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch._dynamo.region_transport import (
    UNKNOWN,
    Fate,
    Fates,
    Place,
    Resolver,
    Step,
    attribute_of,
    has_identity,
    item_of,
    step_of,
)
from torch._guards import ChainedSource, Source


class Stop(NamedTuple):
    """One source on the way."""

    source: Source
    step: Step
    # Number of the stop that it is behind.
    base: int
    # Name of the attribute, or the index.
    key: Any
    # What stood there in the traced call.
    old: Any
    # Whether it matters which of several equal objects that is.
    by_identity: bool


class Route:
    """The sources of a read set in an order in which each comes after its base."""

    def __init__(self, roots: Iterable[Source], resolve: Resolver) -> None:
        """``roots`` are the sources of arguments, which are others in another call."""
        self._roots = set(roots)
        self._resolve = resolve
        self._stops: list[Stop] = []
        # source -> its number
        self._numbers: dict[Source, int] = {}

    def number(self, source: Source) -> int:
        """The number of the stop at ``source``, which is added with all that it is behind if it is new."""
        known = self._numbers.get(source)
        if known is not None:
            return known
        step, key, base = Step.OTHER, None, -1
        if source not in self._roots and isinstance(source, ChainedSource):
            step, key = step_of(source)
            base = self.number(source.base)
        try:
            old = self._resolve(source)
        except Exception:
            step, old = Step.OTHER, UNKNOWN  # nothing there: whoever asks for it will be told
        number = self._numbers[source] = len(self._stops)
        self._stops.append(Stop(source, step, base, key, old, has_identity(old)))
        return number

    def follow(self, fates: Fates) -> list[Place]:
        """What is known of each stop in the call of ``fates``.  Raises what following a source raises."""
        places: list[Place] = []
        for source, step, base, key, old, by_identity in self._stops:
            if step is Step.OTHER or (step is Step.UNUSUAL and not places[base].same):
                place = fates.look(source)
                if not place.moves and old is not UNKNOWN:
                    place.value = old
                places.append(place)
                continue
            above = places[base]
            place = fates.transport.take(source, above.moves)
            places.append(place)
            if above.same:  # it is what it was, and so is what is behind it
                place.value, place.same = old, True
                place.fate = Fate.BEHIND_KNOWN if above.moves else Fate.UNCHANGED
                continue
            if step is Step.ATTRIBUTE:
                value = attribute_of(above.value, key)
            elif step is Step.ITEM:
                value = item_of(above.value, key)
            else:
                value = above.value
            place.value = value
            fates.settle(place, above, value is old and by_identity)
        return places
