"""Symbols in the sizes of a body's operands are operands of the body: Note [A body is given its symbols]."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from testing.cases import some
from torch._dynamo.testing import EagerAndRecordGraphs


W = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)
BACKENDS = ("eager", "aot_eager", "inductor")


def block(x, w):
    y = torch.relu(torch.sin(x) @ w) + x
    return torch.tanh(y) * 2 + torch.cos(y)


def thrice(step, x, w):
    for _ in range(3):
        x = step(x, w)
    return x


def halves(step, x, w):
    """The blocks behind the cut see ``s0 // 2`` only."""
    x = thrice(step, x, w)
    return x.sum() + thrice(step, x.narrow(0, 0, x.size(0) // 2), w).sum()


def pooled(step, x, w):
    """Sizes that pooling makes."""
    x = thrice(step, x, w).t()
    return thrice(step, F.avg_pool1d(x, 3, 2).t(), w).sum()


def up_and_down(step, x, w):
    """A U-Net: each level has half the size of the one above it, and is brought back to its."""
    levels = []
    for _ in range(2):
        x = thrice(step, x, w)
        levels.append(x)
        x = F.avg_pool1d(x.t(), 2).t()
    for level in reversed(levels):
        x = thrice(step, x, w)
        x = F.interpolate(x.t()[None], size=level.size(0))[0].t() + level
    return x.sum()


def joined(step, x, w):
    """``2 * s0`` by cat, ``s0 - 1`` by a slice with an offset, strides of ``s0`` by a transposition."""
    x = thrice(step, torch.cat([x, x * 2]), w)
    x = thrice(step, x[1:], w)
    return thrice(lambda v, u: step(v.t().contiguous().t(), u), x, w).sum()


PROGRAMS = {f.__name__: f for f in (halves, pooled, up_and_down, joined)}


def results(f, size: int, train: bool):
    x = torch.linspace(0, 1, size * 4, dtype=torch.float64).view(size, 4).requires_grad_(train)
    w = W.clone().requires_grad_(train)
    torch._dynamo.mark_dynamic(x, 0)
    found = f(x, w)
    if train:
        found.backward()
    return found.detach(), x.grad, w.grad


def cases() -> list[tuple[str, str, str, bool]]:
    """All programs on the cheap backend; on Inductor, in which a lost symbol crashes, all without gradients and one with."""
    found = []
    for name, kind in itertools.product(PROGRAMS, ("flag", "mark")):
        found += [(name, kind, "aot_eager", True), (name, kind, "inductor", False)]
    for kind in ("flag", "mark"):
        found += [("halves", kind, "eager", False), ("halves", kind, "inductor", True)]
    return found


# By default, the kinds in turn.
@pytest.mark.parametrize(
    ("name", "kind", "backend", "train"),
    some(cases(), [each for each in cases() if (each[1] == "flag") == (each[0] in ("halves", "joined"))]),
)
def test_an_operand_whose_size_is_an_expression(name, kind, backend, train):
    step = torch.compiler.nested_compile_region(block) if kind == "mark" else block

    def program(x, w):
        return PROGRAMS[name](step, x, w)

    with torch._dynamo.config.patch(use_graph_deduplication=kind == "flag", error_on_recompile=True):
        compiled = torch.compile(program, backend=backend, fullgraph=True)
        for size in (16, 24):
            assert_same(results(compiled, size, train), results(program, size, train))


def assert_same(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs)


def bodies_and_calls(program, *args):
    backend = EagerAndRecordGraphs()
    torch.compile(program, backend=backend, fullgraph=True)(*args)
    (graph,) = backend.graphs
    calls = graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    return calls, {str(call.args[1]): getattr(graph, str(call.args[0].target)) for call in calls}


def dynamic(*shape: int) -> torch.Tensor:
    x = torch.rand(*shape, dtype=torch.float64)
    torch._dynamo.mark_dynamic(x, 0)
    return x


def test_a_symbol_that_is_no_size_of_an_operand_is_one_in_front_of_it():
    region = torch.compiler.nested_compile_region(block)
    calls, bodies = bodies_and_calls(lambda x, w: halves(region, x, w), dynamic(8, 4), W)
    assert len(calls) == 6
    assert len(bodies) == 2
    given = []
    for call in calls:
        *symbols, x, _ = (node.meta["example_value"] for node in call.args[2:])
        given.append(len(symbols))
        assert x.shape[0].node.expr.is_Symbol != bool(symbols)
        for symbol in symbols:
            assert {symbol.node.expr} == x.shape[0].node.expr.free_symbols
    assert set(given) == {0, 1}


def test_two_nodes_that_are_one_symbol_are_one_operand():
    """Each call is given what ``x.size(0)`` made of another tensor: it is the input of the graph that is the symbol."""

    @torch.compiler.nested_compile_region
    def region(x, n):
        y = (x * n).sin() + x.view(n, 4).cos()
        return y.relu() * n

    def program(x):
        for _ in range(3):
            x = region(x, x.size(0))
        return x

    calls, bodies = bodies_and_calls(program, dynamic(6, 4))
    assert [len(call.args[2:]) for call in calls] == [2, 2, 2]
    assert len(bodies) == 1
    (symbol,) = {arg for call in calls for arg in call.args[2:] if isinstance(arg.meta["example_value"], torch.SymInt)}
    assert symbol.op == "placeholder"
    compiled = torch.compile(program, fullgraph=True)
    for size in (6, 8):
        x = dynamic(size, 4)
        torch.testing.assert_close(compiled(x), program(x))


def test_a_region_inside_a_region_gets_its_symbols_from_the_one_around_it():
    inner = torch.compiler.nested_compile_region(block)

    @torch.compiler.nested_compile_region
    def outer(x, w):
        half = x.narrow(0, 0, x.size(0) // 2)
        return x.sin() + inner(inner(half, w), w).sum() * x.cos()

    def program(x, w):
        return thrice(outer, x, w).sum()

    for backend, train in itertools.product(BACKENDS, (False, True)):
        torch._dynamo.reset()
        compiled = torch.compile(program, backend=backend, fullgraph=True)
        for size in (8, 12):
            assert_same(results(compiled, size, train), results(program, size, train))


def test_a_fixed_size_is_no_operand():
    calls, _ = bodies_and_calls(
        lambda x, w: thrice(torch.compiler.nested_compile_region(block), x, w), torch.rand(8, 4, dtype=torch.float64), W
    )
    assert [len(call.args[2:]) for call in calls] == [2, 2, 2]
