"""``reuse_hash_fn`` of nested_compile_region: the user says which calls have one body."""

import logging

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounter, EagerAndRecordGraphs
from torch._dynamo.utils import counters


X = torch.randn(4)
pytestmark = pytest.mark.usefixtures("bodies")


class Layer(nn.Module):
    def __init__(self, kind, name, times=1.0):
        super().__init__()
        self.kind, self.name, self.times = kind, name, times

    def forward(self, x):
        # A branch on the name that changes nothing: without a key, each name has a body of its own.
        y = x.sin() if self.name.startswith("layer") else x.exp()
        return y * self.times if self.kind else y.cos()


def stack(kinds, hash_fn, times=()):
    layers = [Layer(kind, f"layer{i}") for i, kind in enumerate(kinds)]
    for layer, t in zip(layers, times, strict=False):
        layer.times = t
    mark = torch.compiler.nested_compile_region(reuse_hash_fn=hash_fn)
    run = mark(lambda layer, x: layer(x))

    def f(x):
        for layer in layers:
            x = run(layer, x)
        return x

    return layers, f


def became():
    return {o: counters["regions"][o] for o in ("traced", "reused", "inlined") if counters["regions"][o]}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_calls_of_one_key_have_one_body(backend):
    _, f = stack([0, 1, 0, 1, 0], lambda layer, x: layer.kind)
    torch.testing.assert_close(torch.compile(f, backend=backend, fullgraph=True)(X), f(X))
    assert became() == {"traced": 2, "reused": 3}


def test_calls_of_different_keys_have_different_bodies():
    backend = EagerAndRecordGraphs()
    _, f = stack([0, 0, 0], lambda layer, x: int(layer.name[-1]))
    torch.testing.assert_close(torch.compile(f, backend=backend, fullgraph=True)(X), f(X))
    assert became() == {"traced": 3}


def test_a_change_of_what_the_key_is_made_of_recompiles():
    counter = CompileCounter()
    layers, f = stack([0, 1, 0, 1], lambda layer, x: layer.kind)
    compiled = torch.compile(f, backend=counter, fullgraph=True)
    torch.testing.assert_close(compiled(X), f(X))
    layers[3].kind = 0
    torch.testing.assert_close(compiled(X), f(X))
    assert counter.frame_count == 2


def test_a_change_of_what_tracing_a_reused_call_reads_recompiles():
    counter = CompileCounter()
    layers, f = stack([1, 1, 1], lambda layer, x: layer.kind)
    compiled = torch.compile(f, backend=counter, fullgraph=True)
    compiled(X)
    for layer in layers:
        layer.times = 3.0
    torch.testing.assert_close(compiled(X), f(X))
    assert counter.frame_count == 2


def test_one_key_for_arguments_of_other_metadata():
    run = torch.compiler.nested_compile_region(lambda x: x.sin() + 1, reuse_hash_fn=lambda x: 7)

    def f(x):
        return run(x), run(x.double()), run(x[:2]), run(x.cos())

    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))
    assert became() == {"traced": 3, "reused": 1}


def test_one_key_for_other_numbers_of_arguments():
    run = torch.compiler.nested_compile_region(lambda *xs: sum(xs).sin(), reuse_hash_fn=lambda *xs: 7)

    def f(x):
        return run(x, x), run(x.cos()), run(x, x.cos(), x.exp()), run(x.exp())

    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))


def test_verification_finds_a_key_that_is_wrong():
    _, f = stack([1, 1], lambda layer, x: 0, times=(2.0, 3.0))
    with torch._dynamo.config.patch(verify_region_reuse=True), pytest.raises(Exception, match="differ from what"):
        torch.compile(f, backend="eager", fullgraph=True)(X)


BAD = {
    "returns no integer": lambda layer, x: layer.name,
    "returns a truth": lambda layer, x: layer.kind == 0,
    "returns a tensor": lambda layer, x: x.sum(),
    "breaks the graph": lambda layer, x: torch._dynamo.graph_break() or 1,
    "raises": lambda layer, x: layer.unknown,
    "takes other arguments": lambda layer: 1,
    "is no function": 5,
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_hash_function_is_left_out_with_a_warning(what, caplog):
    _, f = stack([0, 1, 0], BAD[what])
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))
    assert "reuse_hash_fn" in caplog.text
    assert "is left out" in caplog.text
