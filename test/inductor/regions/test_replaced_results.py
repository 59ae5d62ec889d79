"""Bodies through which no gradient flows, of which a pass replaces what they return: by an operand, or another result."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
from testing.memory_steps import check, leaf


def _returns_its_operand(x):
    z = torch.zeros_like(x) + x
    y = (x.sin() * 0.5 + 1).tanh()
    return y * 2 - 0.1, z


def _returns_one_value_twice(x):
    y = (x.sin() * 0.5 + 1).tanh() * 2 - 0.1
    return y, torch.zeros_like(y) + y


def _returns_a_view_of_its_operand(x):
    z = (torch.zeros_like(x) + x).t()
    y = (x.sin() * 0.5 + 1).tanh()
    return y * 2 - 0.1, z


def _returns_a_view_of_another_result(x):
    y = (x.sin() * 0.5 + 1).tanh() * 2 - 0.1
    return y, (torch.zeros_like(y) + y).t()


LAYERS = [
    _returns_its_operand,
    _returns_one_value_twice,
    _returns_a_view_of_its_operand,
    _returns_a_view_of_another_result,
]


def _uses(w, z):
    w = (w * z).sin()
    return ((w * z).sin().tanh() * z) - 0.1


@pytest.fixture(params=["mark", "flag"])
def marked(request) -> Iterator:
    torch.manual_seed(0)
    mark = request.param == "mark"
    with torch._dynamo.config.patch(use_graph_deduplication=not mark):
        yield torch.compiler.nested_compile_region if mark else lambda function: function


@pytest.mark.parametrize("layer", LAYERS)
def test_a_saved_result_that_is_memory_of_the_program_is_not_donated(marked, layer) -> None:
    """It looked like memory of its own. The backward wrote to the program's input, and to results."""
    layer, uses = marked(layer), marked(_uses)

    def program(x, w):
        y, z = layer(x)
        y2, z2 = layer(y)
        y3, z3 = layer(y2)
        for each in (z, z2, z3):
            w = uses(w, each)
        return w, y, y2, y3

    check(program, leaf(4, 4, grad=False), leaf(4, 4))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_result_that_is_memory_of_the_program_is_not_written_in_place(marked, layer) -> None:
    """Inductor made ``index_put`` a write to what it took for a temporary, which was the program's input."""
    layer = marked(layer)

    def program(x, v):
        i = torch.tensor([0, 1])
        y, z = layer(x)
        y2, z2 = layer(y)
        y3, z3 = layer(y2)
        return [each.index_put((i,), v) for each in (z, z2, z3)], y, y2, y3

    check(program, leaf(4, 4, grad=False), leaf(2, 4, grad=False))
