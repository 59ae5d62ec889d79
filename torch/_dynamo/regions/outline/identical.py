"""Identical runs of a graph, however short: stock's contract of a group of identical regions.

Note [Identical regions]
Stock grows the regions of a group together. It starts from identical nodes, each the last node of its region, and goes
backwards along their operands, one node at a time, while all regions gain identical nodes. So every node of a region
leads to its last one. This file does the same under one more rule: a region stays a run of program order (Note [Regions
are intervals of program order] in graph_view.py). So a region ends at an operator that is not part of it, where stock
would skip the operator, and a region includes a node only if a later node of the region uses the node or what the node
wrote to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from torch._dynamo.regions.outline.graph_view import GraphView
from torch._dynamo.regions.outline.repeats import Repeat


def identical_runs(view: GraphView, sequence: list[int]) -> list[Repeat]:
    """Disjoint runs of two nodes or more, equal in ``sequence`` and in wiring; runs that end latest come first.

    ``sequence``: one integer for each node of ``view``, negative for a node that may be in no run.
    """
    return _Grower(view, sequence).grow_all()


class _Grower:
    def __init__(self, view: GraphView, sequence: list[int]) -> None:
        self.view = view
        self.sequence = sequence
        # 1 for each position in a region, or at the end of a region that is growing.
        self.taken = bytearray(len(sequence))

    def grow_all(self) -> list[Repeat]:
        by_number: dict[int, list[int]] = defaultdict(list)
        for i, number in enumerate(self.sequence):
            if number >= 0:
                by_number[number].append(i)
        found: list[Repeat] = []
        for lasts in sorted(by_number.values(), key=lambda positions: -positions[0]):
            free = [i for i in lasts if not self.taken[i]]
            for alike in self._by_preceding(free, 1).values():
                left = [i for i in alike if not self.taken[i]]
                if len(left) > 1 and (run := self._grow(left)).length > 1:
                    found.append(run)
        return found

    def _grow(self, lasts: list[int]) -> Repeat:
        """The longest runs that end at ``lasts`` and stay identical."""
        for i in lasts:
            self.taken[i] = 1
        length = 1
        while lasts in self._by_preceding(lasts, length).values():
            length += 1
            for i in lasts:
                self.taken[i - length + 1] = 1
        if length == 1:
            for i in lasts:
                self.taken[i] = 0
        return Repeat(length, tuple(i - length + 1 for i in lasts))

    def _by_preceding(self, lasts: list[int], length: int) -> dict[Hashable, list[int]]:
        """``lasts``, grouped by what their runs of ``length`` become with one node more.

        Runs that cannot be extended are left out.
        """
        last = set(lasts)
        kinds: dict[Hashable, list[int]] = defaultdict(list)
        for i in lasts:
            start = i - length
            if start < 0 or self.sequence[start] < 0 or self.taken[start] or start in last:
                continue
            # The run must use what the node makes or writes to.
            made = {start, *self.view.writes.get(start, ())}
            if any(not made.isdisjoint(self.view.operands[k]) for k in range(start + 1, i + 1)):
                kinds[self.sequence[start], self.view.wiring(start, i + 1)].append(i)
        return kinds
