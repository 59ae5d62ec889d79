"""Regions under the plain eager backend: autograd sees the operators of the body, as it does without regions."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch._dynamo
from torch._subclasses.fake_tensor import FakeTensorMode


@torch.compiler.nested_compile_region
def body(x, w):
    y = (x @ w).sin()
    return torch.nn.functional.dropout(y, 0.5), y.detach() * 2, y > 0


def twice(x, w):
    a, b, m = body(x, w)
    c, d, n = body(a, w)
    return c + d, b, m, n


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    torch.manual_seed(0)
    return torch.compile(twice, backend="eager", fullgraph=True)


@pytest.fixture
def args():
    return torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)


def test_backward_and_random_numbers(compiled, args) -> None:
    expected = []
    for function in (twice, compiled):
        torch.manual_seed(1)
        out = function(*args)
        expected.append((*out, *torch.autograd.grad(out[0].pow(2).sum(), args), torch.get_rng_state()))
    for a, b in zip(*expected):
        assert a.requires_grad == b.requires_grad
        torch.testing.assert_close(b, a)


def test_double_backward(compiled, args) -> None:
    x, w = args
    expected = []
    for function in (twice, compiled):
        torch.manual_seed(1)
        (first,) = torch.autograd.grad(function(x, w)[0].sum(), x, create_graph=True)
        expected.append(torch.autograd.grad(first.sum(), w))
    torch.testing.assert_close(expected[1], expected[0])


def test_saved_tensor_hooks_see_the_operators(compiled, args) -> None:
    seen = []
    for function in (twice, compiled):
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(tuple(t.shape)) or t, lambda t: t):
            torch.manual_seed(1)
            function(*args)[0].sum().backward()
        seen.append(packed)
    assert seen[1] == seen[0]


def test_a_graph_with_a_call_is_unpickled(with_regions):
    """Its code is traced with proxies. Entries of AOTAutogradCache with marks in marks could not be read in a compile."""
    graphs = []
    torch._dynamo.reset()
    torch.compile(twice, backend=lambda gm, _: graphs.append(gm) or gm)(torch.ones(8, 8), torch.ones(8, 8))
    with FakeTensorMode():
        again = pickle.loads(pickle.dumps(graphs[0]))
    calls = [
        [n.args[1:2] for n in gm.graph.nodes if n.target is torch.ops.higher_order.invoke_subgraph]
        for gm in (graphs[0], again)
    ]
    assert len(calls[0]) == 2 and calls[1] == calls[0]
