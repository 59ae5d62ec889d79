"""Fits runs of equal keys to the boundary rules, so that a body can serve them.

``Fitter.settle`` takes runs whose nodes have equal keys. It groups the runs by wiring, excludes the nodes that break a
rule of Note [What may cross the boundary] (graph_view.py), and repeats this with the runs between those nodes. Every
group it returns can be outlined and is worth it by the ``Benefit``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable

from torch._dynamo.regions.outline.copies import number_copied
from torch._dynamo.regions.outline.graph_view import GraphView
from torch._dynamo.regions.outline.policy import Benefit
from torch._dynamo.regions.outline.repeats import Repeat


# A run that has been split this often at nodes that break a boundary rule is left flat.
MAX_SPLITS = 12


class Fitter:
    def __init__(self, view: GraphView, benefit: Benefit) -> None:
        self.view = view
        self.benefit = benefit

    def settle(self, repeat: Repeat) -> list[Repeat]:
        """Splits runs until one body serves all runs of a group and no boundary rule is broken."""
        settled: list[Repeat] = []
        work = [(repeat, 0)]
        while work:
            run, splits = work.pop()
            size = self.view.size(run.starts[0], run.length)
            if splits > MAX_SPLITS or not self.benefit.of_runs(size, len(run.starts)):
                continue
            by_wiring: dict[Hashable, list[int]] = defaultdict(list)
            for s in run.starts:
                by_wiring[self.view.signature(s, s + run.length)].append(s)
            groups = [tuple(members) for members in by_wiring.values() if len(members) >= self.benefit.least_calls]
            if not groups:
                half = run.length // 2
                work.append((Repeat(half, run.starts), splits + 1))
                second = tuple(s + half for s in run.starts)
                work.append((Repeat(run.length - half, second), splits + 1))
            for starts in groups:
                group = Repeat(run.length, starts)
                if broken := self._broken_indices(group):
                    work += [(part, splits + 1) for part in _split(group, broken)]
                elif self._pays(group):
                    settled.append(group)
        return settled

    def _results(self, group: Repeat) -> set[int]:
        """Indices whose values are used outside in any run of the group."""
        return {i - s for s in group.starts for i in self.view.outputs(s, s + group.length)}

    def _broken_indices(self, group: Repeat) -> set[int]:
        results = self._results(group)
        return {i - s for s in group.starts for i in self.view.offences(s, s + group.length, results)}

    def _pays(self, group: Repeat) -> bool:
        start, end = group.starts[0], group.starts[0] + group.length
        results, size = len(self._results(group)), self.view.size(start, group.length)
        # A body without operands is a constant; one without results computes nothing.
        has_inputs = bool(self.view.inputs(start, end))
        # What is copied back is one more result, and the copy.
        crossing = results + 2 * number_copied(self.view, start, end)
        return has_inputs and results > 0 and self.benefit.of_group(size, len(group.starts), crossing)


def _split(group: Repeat, broken: Iterable[int]) -> list[Repeat]:
    """The runs between the indices in ``broken``, which stay outside."""
    parts = []
    begin = 0
    for index in (*sorted(broken), group.length):
        if index > begin:
            parts.append(Repeat(index - begin, tuple(s + begin for s in group.starts)))
        begin = index + 1
    return parts
