"""The repeats of a sequence, against a search through all of them."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.regions.outline.repeats import find_repeats, is_worth_it, nodes_saved


def _best_by_search(sequence):
    best = 0
    for length in range(1, len(sequence)):
        places = defaultdict(list)
        for i in range(len(sequence) - length + 1):
            places[tuple(sequence[i : i + length])].append(i)
        for starts in places.values():
            count, end = 0, 0
            for s in starts:
                if s >= end:
                    count, end = count + 1, s + length
            if is_worth_it(length, count):
                best = max(best, nodes_saved(length, count))
    return best


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 4), max_size=48))
def test_the_best_repeat_is_the_best_there_is(sequence):
    found = find_repeats(sequence)
    for repeat in found:
        assert is_worth_it(repeat.length, len(repeat.starts))
        assert all(b - a >= repeat.length for a, b in zip(repeat.starts, repeat.starts[1:]))
        assert len({tuple(sequence[s : s + repeat.length]) for s in repeat.starts}) == 1
    best = max((nodes_saved(r.length, len(r.starts)) for r in found), default=0)
    assert best == _best_by_search(sequence)


def test_a_block_that_repeats_is_found_whole():
    block = list(range(10, 70))
    first = find_repeats([1, 2, 3, *block * 32, 4])[0]
    assert (first.length, first.starts) == (60, tuple(range(3, 3 + 60 * 32, 60)))


def test_nothing_repeats():
    assert find_repeats([]) == find_repeats([7]) == find_repeats(list(range(50))) == []


def test_what_saves_nothing_is_not_worth_a_call():
    assert not is_worth_it(length=100, count=1)
    assert not is_worth_it(length=2, count=1000)
    assert not is_worth_it(length=8, count=2, call_cost=4)
    assert is_worth_it(length=8, count=2)
