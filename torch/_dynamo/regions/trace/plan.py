"""The way through all that a read set is about, each place behind the one that leads to it.

An entry is compared with many calls, and asks for the same sources each time. So the order in which they lead to each
other, and how, is found out once; for a call, one pass over them tells what stands there and what tracing would make
of it (``Fate``). Sources of unusual kinds are left to ``Fates``, which finds the same one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch._dynamo.regions.trace.objects import EXACT, attribute_of, item_of
from torch._dynamo.regions.trace.sources import Step, step_of
from torch._dynamo.regions.trace.substitution import UNKNOWN, Fates, Place, Resolver
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


class Route:
    """The sources of a read set in an order in which each comes after its base."""

    def __init__(self, roots: Iterable[Source], resolve: Resolver) -> None:
        """``roots`` are the sources of arguments, which are others in another call."""
        self._roots = set(roots)
        self._resolve = resolve
        self.stops: list[Stop] = []
        # source -> its number
        self._numbers: dict[Source, int] = {}

    def number(self, source: Source) -> int:
        """The number of the stop at ``source``, which is added with all that it is behind if it is new.

        Raises NoStep.
        """
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
        number = self._numbers[source] = len(self.stops)
        self.stops.append(Stop(source, step, base, key, old))
        return number

    def objects(self) -> dict[int, list[int]]:
        """id of each object on the way that is known by identity -> numbers of its stops."""
        found: dict[int, list[int]] = {}
        for number, stop in enumerate(self.stops):
            if stop.old is not UNKNOWN and type(stop.old) not in EXACT:
                found.setdefault(id(stop.old), []).append(number)
        return found

    def follow(self, fates: Fates) -> list[Place]:
        """What is known of each stop in the call of ``fates``.  Raises what following a source raises."""
        places: list[Place] = []
        for source, step, base, key, old in self.stops:
            if step is Step.OTHER or (step is Step.EVALUATED and not places[base].same):
                place = fates.look(source)
                if not place.moves and old is not UNKNOWN:
                    place.value = old
                places.append(place)
                continue
            above = places[base]
            place = fates.transport.take(source, above.moves)
            places.append(place)
            if above.same:  # the objects that the program has are not changed while the frame is traced
                value = old
            elif step is Step.ATTRIBUTE:
                value = attribute_of(above.value, key)
            elif step is Step.ITEM:
                value = item_of(above.value, key)
            else:
                value = above.value
            place.value = value
            fates.settle(place, above, value is old)
        return places
