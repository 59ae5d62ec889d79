"""Repeated runs in a sequence of node keys.

The sequence is the graph in program order, one integer for each node: equal integers for nodes with equal keys, a
unique integer for a node that must stay where it is. A repeat is a run of integers that occurs more than once. The
repeats returned are the maximal ones, which correspond to inner nodes of a suffix tree and are read from a suffix
array.

Algorithm: suffix array by prefix doubling (Manber and Myers, "Suffix arrays: a new method for on-line string searches",
1993; n log^2 n comparisons), longest common prefixes by Kasai et al., "Linear-time longest-common-prefix computation in
suffix arrays" (2001), inner nodes of the tree by Abouelhoda, Kurtz and Ohlebusch, "Replacing suffix trees with enhanced
suffix arrays" (2004). The time after sorting is linear: each position has at most one inner node, and only the
``MAX_CANDIDATES`` most promising nodes are examined in full.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Iterator

from torch._dynamo.regions.outline.policy import OutliningPolicy, nodes_saved


# How many inner nodes of the suffix tree have their occurrences counted exactly in one round.
MAX_CANDIDATES = 48


@dataclasses.dataclass(frozen=True)
class Repeat:
    """A run of ``length`` nodes at each of ``starts`` (ascending, not overlapping)."""

    length: int
    starts: tuple[int, ...]


def find_repeats(sequence: list[int], policy: OutliningPolicy, sizes: list[int] | None = None) -> list[Repeat]:
    """The most promising repeats of ``sequence`` for ``policy``, best first. They may overlap each other.

    ``sizes``: how many operators each element counts as, one if None; equal elements have equal sizes.
    """
    before = [0, *itertools.accumulate(sizes or itertools.repeat(1, len(sequence)))]

    def size(start: int, length: int) -> int:
        return before[start + length] - before[start]

    suffixes = _suffix_array(sequence)
    common = _common_prefixes(sequence, suffixes)
    best = heapq.nlargest(
        MAX_CANDIDATES,
        (
            (
                nodes_saved(size(low, length), _likely_count(low, high, right - left + 1, length)),
                length,
                left,
                right,
            )
            for length, left, right, low, high in _inner_nodes(suffixes, common)
            if length and size(low, length) >= policy.least_length
        ),
    )
    repeats = [
        Repeat(length, _without_overlap(sorted(suffixes[left : right + 1]), length)) for _, length, left, right in best
    ]
    repeats = [r for r in repeats if policy.is_worth_it(size(r.starts[0], r.length), len(r.starts))]
    repeats.sort(key=lambda r: (-nodes_saved(size(r.starts[0], r.length), len(r.starts)), r.starts))
    return repeats


def _without_overlap(positions: list[int], length: int) -> tuple[int, ...]:
    """A largest subset of ``positions`` that are at least ``length`` apart; taking the earliest first is optimal."""
    chosen: list[int] = []
    end = -1
    for position in positions:
        if position >= end:
            chosen.append(position)
            end = position + length
    return tuple(chosen)


def _likely_count(low: int, high: int, occurrences: int, length: int) -> int:
    """The number of occurrences that do not overlap, if they are spread evenly from ``low`` to ``high``."""
    gap = max((high - low) // (occurrences - 1), 1)
    stride = -(-length // gap)
    return (occurrences - 1) // stride + 1


def _suffix_array(sequence: list[int]) -> list[int]:
    """Start positions of the suffixes of ``sequence`` in lexicographic order."""
    n = len(sequence)
    suffixes = list(range(n))
    names = {value: rank for rank, value in enumerate(sorted(set(sequence)))}
    rank = [names[value] for value in sequence]
    step = 1
    suffixes.sort(key=rank.__getitem__)
    while True:
        # One integer holds two ranks: that of the first half, then that of the second (0: past the end).
        pairs = [r * (n + 1) for r in rank]
        for i in range(n - step):
            pairs[i] += rank[i + step] + 1
        suffixes.sort(key=pairs.__getitem__)
        fresh, last = -1, None
        for position in suffixes:
            pair = pairs[position]
            if pair != last:
                fresh, last = fresh + 1, pair
            rank[position] = fresh
        if fresh >= n - 1 or step >= n:
            return suffixes
        step *= 2


def _common_prefixes(sequence: list[int], suffixes: list[int]) -> list[int]:
    """common[k]: length of the longest common prefix of suffixes k - 1 and k; common[0] is 0."""
    n = len(sequence)
    order = [0] * n
    for k, position in enumerate(suffixes):
        order[position] = k
    common = [0] * n
    matched = 0
    for position in range(n):
        k = order[position]
        if k == 0:
            matched = 0
            continue
        other = suffixes[k - 1]
        limit = n - max(position, other)
        while matched < limit and sequence[position + matched] == sequence[other + matched]:
            matched += 1
        common[k] = matched
        matched = max(matched - 1, 0)
    return common


def _inner_nodes(suffixes: list[int], common: list[int]) -> Iterator[tuple[int, int, int, int, int]]:
    """Inner nodes of the suffix tree, each as (length, left, right, low, high).

    ``left`` and ``right`` are the first and last index in ``suffixes`` below the node; ``low`` and ``high`` are the
    lowest and highest position among those suffixes.
    """
    # Each stack entry is an open inner node: [length, left, low, high].
    stack: list[list[int]] = [[0, 0, suffixes[0], suffixes[0]]] if suffixes else []
    for k in range(1, len(suffixes) + 1):
        length = common[k] if k < len(suffixes) else -1
        left, low, high = k - 1, suffixes[k - 1], suffixes[k - 1]
        while stack and stack[-1][0] > length:
            closed, left, lowest, highest = stack.pop()
            low, high = min(low, lowest), max(high, highest)
            yield closed, left, k - 1, low, high
        if stack and stack[-1][0] == length:
            stack[-1][2] = min(stack[-1][2], low)
            stack[-1][3] = max(stack[-1][3], high)
        elif length >= 0:
            stack.append([length, left, low, high])
