"""The repeats of a sequence, against a search through all of them."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.regions.outline.policy import EVERY_REPEAT, IN_BODY, IN_GRAPH, nodes_saved
from torch._dynamo.regions.outline.repeats import find_repeats


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
            if IN_GRAPH.is_worth_it(length, count):
                best = max(best, nodes_saved(length, count))
    return best


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 4), max_size=48))
def test_the_best_repeat_is_the_best_there_is(sequence):
    found = find_repeats(sequence, IN_GRAPH)
    for repeat in found:
        assert IN_GRAPH.is_worth_it(repeat.length, len(repeat.starts))
        assert all(b - a >= repeat.length for a, b in zip(repeat.starts, repeat.starts[1:]))
        assert len({tuple(sequence[s : s + repeat.length]) for s in repeat.starts}) == 1
    best = max((nodes_saved(r.length, len(r.starts)) for r in found), default=0)
    assert best == _best_by_search(sequence)


def test_a_block_that_repeats_is_found_whole():
    block = list(range(10, 70))
    first = find_repeats([1, 2, 3, *block * 32, 4], IN_GRAPH)[0]
    assert (first.length, first.starts) == (60, tuple(range(3, 3 + 60 * 32, 60)))


def test_nothing_repeats():
    for sequence in ([], [7], list(range(50))):
        assert find_repeats(sequence, IN_GRAPH) == []


def test_what_saves_nothing_is_not_worth_a_call():
    assert not IN_GRAPH.is_worth_it(length=100, calls=1)
    assert not IN_GRAPH.is_worth_it(length=2, calls=1000)
    assert not IN_GRAPH.is_worth_it(length=8, calls=2, call_cost=4)
    assert IN_GRAPH.is_worth_it(length=8, calls=2)


def test_a_call_in_a_body_must_save_more():
    assert not IN_BODY.is_worth_it(length=8, calls=2)
    assert IN_BODY.is_worth_it(length=20, calls=2)


def test_switched_off_the_policy_asks_for_two_calls_of_two_nodes():
    assert EVERY_REPEAT.is_worth_it(length=2, calls=2)
    assert EVERY_REPEAT.of_group(length=2, calls=2, results=2)
    assert not EVERY_REPEAT.is_worth_it(length=1, calls=1000)
    assert not EVERY_REPEAT.is_worth_it(length=1000, calls=1)
