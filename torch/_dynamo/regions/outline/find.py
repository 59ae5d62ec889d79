"""Finds the repeats of a graph that are worth a body: in each round, matches repeated runs, fits them and chooses.

Time and memory are near-linear in the graph: n log^2 n comparisons to sort suffixes, and linear work in each of at most
``MAX_ROUNDS`` rounds, each on what the rounds before left over.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

from torch._dynamo.regions.outline.fit import Fitter
from torch._dynamo.regions.outline.graph_view import GraphView
from torch._dynamo.regions.outline.policy import OutliningPolicy, nodes_saved
from torch._dynamo.regions.outline.repeats import Repeat, find_repeats


# Each round matches the nodes that are in no region yet. Few graphs need four.
MAX_ROUNDS = 16


class Finder:
    """Chooses groups of regions, round by round."""

    def __init__(self, view: GraphView, sequence: list[int], policy: OutliningPolicy) -> None:
        self.view = view
        self.policy = policy
        self.fitter = Fitter(view, policy)
        self.sequence = sequence
        self.rounds = 0
        # 1 for each position that is in a chosen region.
        self.taken = bytearray(len(sequence))

    def find(self) -> list[Repeat]:
        chosen: list[Repeat] = []
        for self.rounds in range(1, MAX_ROUNDS + 1):
            before = len(chosen)
            for repeat in self._candidates():
                free = tuple(s for s in repeat.starts if self._is_free(s, s + repeat.length))
                size = self.view.size(repeat.starts[0], repeat.length)
                if self.policy.of_runs(size, len(free)):
                    for group in self.fitter.settle(self._fit(repeat.length, free)):
                        self._take(group)
                        chosen.append(group)
            if len(chosen) == before:
                break
        chosen.sort(key=lambda g: -nodes_saved(self.view.size(g.starts[0], g.length), len(g.starts)))
        return chosen

    def _candidates(self) -> list[Repeat]:
        """Repeats among the positions that are not taken, as positions of the whole sequence."""
        # A number that occurs once, or a taken position, ends a run. One unique number between two runs is enough.
        count: dict[int, int] = defaultdict(int)
        for i, number in enumerate(self.sequence):
            if not self.taken[i]:
                count[number] += 1
        packed: list[int] = []
        origin: list[int] = []
        own = itertools.count(-1, -1)
        for i, number in enumerate(self.sequence):
            if not self.taken[i] and count[number] > 1:
                packed.append(number)
            elif packed and packed[-1] >= 0:
                packed.append(next(own))
            else:
                continue
            origin.append(i)
        if not packed:
            return []
        sizes = [self.view.sizes[i] for i in origin]
        return [Repeat(r.length, tuple(origin[s] for s in r.starts)) for r in find_repeats(packed, self.policy, sizes)]

    def _is_free(self, start: int, end: int) -> bool:
        return self.taken.find(1, start, end) < 0

    def _take(self, group: Repeat) -> None:
        for start in group.starts:
            self.taken[start : start + group.length] = b"\1" * group.length

    def _slack(self, length: int, starts: tuple[int, ...], step: int) -> int:
        """How many more nodes are equal in all runs before (``step`` -1) or after (``step`` 1) them."""
        edges = [s - 1 if step < 0 else s + length for s in starts]
        bound = length  # beyond that, the same rotations come again
        for moved in range(bound):
            first = edges[0] + step * moved
            if not 0 <= first < len(self.sequence):
                return moved
            number = self.sequence[first]
            for edge in edges:
                at = edge + step * moved
                if not 0 <= at < len(self.sequence) or self.sequence[at] != number or self.taken[at]:
                    return moved
        return bound

    def _fit(self, length: int, starts: tuple[int, ...]) -> Repeat:
        """Extends the runs as far as all can be extended, and shifts them to where the fewest values cross.

        A loop's body repeats at any rotation. The rotation with the narrowest boundary is the block that its author
        wrote, or a better one.
        """
        before, after = self._slack(length, starts, -1), self._slack(length, starts, 1)
        gap = min((b - a - length for a, b in itertools.pairwise(starts)), default=0)
        left = min(before, gap)
        right = min(after, gap - left)
        length, before, after = length + left + right, before - left, after - right
        starts = tuple(s - left for s in starts)
        width = self.view.live_width

        def crossing(shift: int) -> tuple[int, int]:
            return sum(width[s + shift] for s in starts), abs(shift)

        shift = min(range(-before, after + 1), key=crossing)
        return Repeat(length, tuple(s + shift for s in starts))
