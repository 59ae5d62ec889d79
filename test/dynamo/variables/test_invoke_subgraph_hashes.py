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


class Holds:
    """What a region reads behind its argument."""


def _of_holders(body, hold, **options):
    """A program that calls ``body`` with four holders and one key, the holders, and the counter of its compiles."""
    holders = [Holds() for _ in range(4)]
    for number, holder in enumerate(holders):
        hold(holder, number)
    marked = torch.compiler.nested_compile_region(body, reuse_hash_fn=lambda holder, x: 0)

    def program(x):
        for holder in holders:
            x = marked(holder, x)
        return x

    counter = CompileCounter()
    return torch.compile(program, backend=counter, **options), holders, counter


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(6, 2),
        torch.zeros(3),
        torch.zeros(6, dtype=torch.float64),
        torch.zeros(6, requires_grad=True),
        torch.zeros(12)[::2],
    ],
    ids=["rank", "length", "dtype", "requires_grad", "stride"],
)
def test_a_tensor_of_which_a_call_of_a_key_reads_the_metadata_is_guarded(other):
    def body(holder, x):
        return (x * 2 if holder.kept.requires_grad else x.sin()) * holder.kept.dim()

    compiled, holders, counter = _of_holders(body, lambda h, n: setattr(h, "kept", torch.zeros(6)), dynamic=False)
    compiled(X)
    compiled(X)
    assert counter.frame_count == 1 and counters["regions"]["reused"] == 3
    holders[2].kept = other
    compiled(X)
    assert counter.frame_count == 2


def test_numbers_that_calls_of_a_key_read_have_a_history():
    """Once a number has changed, Dynamo makes a symbol of it, and new values need no compile."""

    def body(holder, x):
        return x * holder.times

    compiled, holders, counter = _of_holders(body, lambda h, n: setattr(h, "times", 7))
    frames = []
    for times in (7, 8, 9, 10):
        for holder in holders:
            holder.times = times
        torch.testing.assert_close(compiled(X), X * times**4)
        frames.append(counter.frame_count)
    assert frames == [1, 2, 2, 2]


@pytest.mark.parametrize("others", ["object", "tensor", "none"])
def test_a_call_of_a_key_has_another_kind_of_value(others):
    """The guard of the traced call's value cannot be made for this call's, so this call is traced."""
    made = {"object": Holds, "tensor": lambda: torch.ones(4), "none": lambda: None}[others]

    def body(holder, x):
        return (x.sin() if holder.extra is None else x.sin() * 1).cos()

    def hold(holder, number):
        holder.extra = (made() if number == 2 else None) if others != "none" else (None if number == 2 else 5)

    compiled, holders, counter = _of_holders(body, hold)
    got = compiled(X)
    wanted = X
    for holder in holders:
        wanted = body(holder, wanted)
    torch.testing.assert_close(got, wanted)
    compiled(X)
    assert counter.frame_count == 1
    assert counters["regions"]["reused"] == 2 + (others == "none")
