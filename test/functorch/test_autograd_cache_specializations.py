"""Graphs that Dynamo compiles again for some sizes (``mark_dynamic(specialize_on=[...])``) have entries of their own."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
import torch._dynamo
from testing.kernels import fresh_graphs
from torch._dynamo.utils import counters
from torch._inductor.graph import GraphLowering
from torch.utils._release import RELEASE


SIZES = (5, 8, 16, 24)


@pytest.fixture(autouse=True)
def own_cache() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with fresh_graphs():
        yield
    torch._dynamo.reset()


def block(x, w):
    y = torch.relu(x @ w) + x
    return torch.tanh(y) * 2 + torch.cos(y)


region = torch.compiler.nested_compile_region(block)


def deep(step):
    def program(x, w):
        for _ in range(3):
            x = step(x, w)
        return x

    return program


PROGRAMS = {
    "plain": (lambda x, w: torch.cat([x, x * 5]) @ w, False),
    "marked": (deep(region), False),
    "flag": (deep(block), True),
}


def marked_dynamic(size: int, *conditions) -> torch.Tensor:
    x = torch.arange(size * 4.0).view(size, 4) / 16
    torch._dynamo.mark_dynamic(x, 0, specialize_on=list(conditions))
    return x


def cache_counts() -> tuple[int, int, int]:
    found = counters["aot_autograd"]
    return tuple(found[f"autograd_cache_{what}"] for what in ("miss", "hit", "saved"))


def run(program, flag: bool, *conditions, sizes=SIZES) -> list[str]:
    """The code that each size compiled, empty when it compiled none; compares each result with eager."""
    w = torch.linspace(-1, 1, 16).view(4, 4)
    torch._dynamo.reset()
    codes = []
    with (
        torch._dynamo.config.patch(use_graph_deduplication=flag),
        patch.object(GraphLowering, "save_output_code") as save,
    ):
        compiled = torch.compile(program)
        for size in sizes:
            x = marked_dynamic(size, *conditions)
            torch.testing.assert_close(compiled(x, w), program(x, w))
            codes.append("".join(call.args[0] for call in save.call_args_list))
            save.reset_mock()
    return codes


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_size_asked_for_has_an_entry(name):
    """One trace; the size that a condition names runs code for it, also out of the cache, the others the general code."""
    conditions = (lambda size: size == 8, lambda size: size == 16)
    general, eight, sixteen, other = run(*PROGRAMS[name], *conditions)
    assert cache_counts() == (3, 0, 3)
    assert counters["stats"]["unique_graphs"] == 1
    assert not other
    assert "(8, 4)" in eight and "(16, 4)" in sixteen
    assert "(8, 4)" not in general and "(16, 4)" not in general
    run(*PROGRAMS[name], *conditions)
    # From 2.15 on, code for one size begins with symbols of its own, and what they are is found while it is compiled. An
    # entry that is found finds out nothing, so the code for the next size begins with other symbols than the first time.
    anew = RELEASE >= (2, 15) and name != "plain"
    assert cache_counts() == ((4, 2, 4) if anew else (3, 3, 3))
    run(*PROGRAMS[name], *conditions)
    assert cache_counts() == ((4, 5, 4) if anew else (3, 6, 3))


def test_a_condition_is_what_it_says():
    """Written in another way it finds the entry, and one that says something else does not."""
    program, flag = PROGRAMS["plain"]
    run(program, flag, lambda size: size == 8, sizes=(5, 8))
    assert cache_counts() == (2, 0, 2)
    eight = 8
    run(program, flag, lambda n: n == eight, sizes=(5, 8))
    assert cache_counts() == (2, 2, 2)
    run(program, flag, lambda size: size % 4 == 0, sizes=(5, 8))
    assert cache_counts() == (3, 3, 3)


def test_the_input_that_a_condition_is_about_counts():
    """Two programs that ask for code for one size of another input each."""

    def program(x, y):
        return x.sum(0) * y.sum(0)

    def called(first: int, second: int, *, on_first: bool) -> None:
        torch._dynamo.reset()
        compiled = torch.compile(program)
        x, y = torch.rand(first, 4), torch.rand(second, 4)
        torch._dynamo.mark_dynamic(x, 0, specialize_on=[lambda n: n == 8] if on_first else [])
        torch._dynamo.mark_dynamic(y, 0, specialize_on=[] if on_first else [lambda n: n == 8])
        torch.testing.assert_close(compiled(x, y), program(x, y))

    called(8, 6, on_first=True)
    called(6, 8, on_first=False)
    assert cache_counts()[:2] == (3, 1)  # the code for all sizes is one
