"""A call of a body that was traced before is recorded as stock records it, from what is known of the body."""

from __future__ import annotations

import re

import pytest
import torch
import torch._dynamo
from torch._higher_order_ops import region_tracing
from torch._higher_order_ops.metadata_keys import looks


class Graph:
    """The forward and backward graphs of a training step: their code, and the examples at each node."""

    def __init__(self) -> None:
        self.code: list[str] = []
        self.examples: list[object] = []

    def __call__(self, gm, _):
        from functorch.compile import make_boxed_func

        # Calls are numbered by a counter of the process.
        self.code.append(re.sub(r"'call_id': \d+", "", gm.print_readable(print_output=False)))
        for node in gm.graph.nodes:
            val = node.meta.get("val")
            each = val if isinstance(val, tuple) else (val,)
            self.examples.append((node.name, [looks(v) for v in map(_example, each)], node.meta.get("tensor_meta")))
        return make_boxed_func(gm.forward)


def _example(value):
    return value if isinstance(value, torch.Tensor) else None


def compiled(program, arguments, dynamic=False):
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    graph = Graph()
    backend = aot_autograd(fw_compiler=graph, bw_compiler=graph)
    arguments = [a.clone().requires_grad_(a.requires_grad) for a in arguments]
    result = torch.compile(program, backend=backend, fullgraph=True, dynamic=dynamic)(*arguments)
    result.sum().backward()
    return graph, [result.detach(), *(a.grad for a in arguments)]


def eager(program, arguments):
    arguments = [a.clone().requires_grad_(a.requires_grad) for a in arguments]
    result = program(*arguments)
    result.sum().backward()
    return [result.detach(), *(a.grad for a in arguments)]


@torch.compiler.nested_compile_region
def block(x, weight, mask):
    return (x @ weight).sin() * mask, weight.sum()


def stack(x, weight, mask):
    total = 0
    for _ in range(4):
        x, size = block(x, weight, mask)
        total = total + size
    return x.sum() + total


@pytest.fixture
def recorded(monkeypatch):
    """How many calls were recorded from what is known."""
    count = [0]
    record = region_tracing.record_call

    def counted(*args):
        results = record(*args)
        count[0] += results is not None
        return results

    monkeypatch.setattr(region_tracing, "record_call", counted)
    return count


ARGUMENTS = [torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True), torch.ones(4, 4)]


def test_calls_are_recorded_and_compute_the_same(recorded):
    _, got = compiled(stack, ARGUMENTS)
    torch.testing.assert_close(got, eager(stack, ARGUMENTS))
    # Of four calls forward and four backward the first each is traced; the last backward one has other tangents.
    assert recorded[0] >= 5


def test_the_graphs_are_those_that_stock_makes(monkeypatch):
    ours, _ = compiled(stack, ARGUMENTS)
    monkeypatch.setattr(region_tracing, "record_call", lambda *_: None)
    theirs, _ = compiled(stack, ARGUMENTS)
    assert ours.code == theirs.code
    assert ours.examples == theirs.examples


def test_a_gradient_that_is_none_stays_none(recorded):
    """The mask has no gradient, so the body's backward returns None in its place."""
    _, got = compiled(stack, ARGUMENTS)
    assert got[-1] is None and recorded[0]


def test_a_call_with_sizes_that_are_no_numbers_is_traced_as_stock_does(recorded):
    _, got = compiled(stack, ARGUMENTS, dynamic=True)
    torch.testing.assert_close(got, eager(stack, ARGUMENTS))
    assert recorded == [0]


def test_a_second_derivative_of_the_examples_is_no_business_of_the_graph():
    """A write to the metadata of a result does not reach the example at its node."""

    def program(x, weight, mask):
        first, _ = block(x, weight, mask)
        second, _ = block(first, weight, mask)
        second = second.clone()
        second.unsqueeze_(0)
        return second.sum()

    _, got = compiled(program, ARGUMENTS)
    torch.testing.assert_close(got, eager(program, ARGUMENTS))
