"""Constants that are computed of others, which the program has not looked at: from 2.15 on Dynamo holds them back."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters


def _run(make, *numbers, calls=2):
    """The program's results and reuses, marked, for each of ``numbers`` with one compile; held to eager's."""
    torch._dynamo.reset()
    counters.clear()
    program, plain = make(torch.compiler.nested_compile_region), make(lambda fn: fn)
    compiled = torch.compile(program, backend="eager", fullgraph=True)
    for number in numbers:
        x = torch.randn(3)
        for _ in range(calls):
            expected, found = plain(x, number), compiled(x, number)
            torch.testing.assert_close(found[0], expected[0])
            assert found[1:] == expected[1:] and [*map(type, found)] == [*map(type, expected)]
    return counters["regions"]["reused"]


def argument(mark):
    """A region is given a sum of a number that the program has not looked at, which no source says."""
    region = mark(lambda x, n: (x.sin(), n * 2))

    def program(x, n):
        told = []
        for _ in range(4):
            x, twice = region(x, n + 1)
            told.append(twice)
        return x, told

    return program


def in_a_container(mark):
    region = mark(lambda x, pair: (x * pair[0], [pair[1] + 1]))

    def program(x, n):
        told = []
        for _ in range(3):
            x, more = region(x, [n + 1, n - 1])
            told += more
        return x, told

    return program


class Counter:
    def __init__(self):
        self.n = 5


def behind_an_argument(mark):
    region = mark(lambda x, counter: (x.cos(), counter.n + 1))
    counters_of = [Counter() for _ in range(3)]

    def program(x, n):
        told = []
        for i, each in enumerate(counters_of):
            x, more = region(x, each)
            told.append(more)
        return x, told, n

    return program


def stored(mark):
    """What a call stores is a sum of what stood there: of each call's own object."""

    def step(x, counter):
        counter.n = counter.n + 1
        return x.cos()

    region = mark(step)
    counters_of = [Counter() for _ in range(3)]

    def program(x, n):
        for i in range(3):
            x = region(x, counters_of[i])
        return x, [each.n for each in counters_of], n

    return program


TOTAL = 0


def in_a_global(mark):
    """The second call adds to what the first one has bound, not to what the frame began with."""

    def step(x):
        global TOTAL
        TOTAL = TOTAL + 1
        return x.cos()

    region = mark(step)

    def program(x, n):
        global TOTAL
        TOTAL = n
        for _ in range(4):
            x = region(x)
        return x, TOTAL

    return program


def bound_before_the_calls(mark):
    def step(x):
        global TOTAL
        TOTAL = TOTAL + 1
        return x.cos(), TOTAL

    region = mark(step)

    def program(x, n):
        global TOTAL
        TOTAL = n + 1
        told = []
        for _ in range(4):
            x, now = region(x)
            told.append(now)
        return x, told, TOTAL

    return program


PROGRAMS = [argument, in_a_container, behind_an_argument, stored, in_a_global, bound_before_the_calls]


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_a_computed_constant_is_that_of_each_call(make):
    assert _run(make, 3, 4, 4, True, 7)
