"""A number that has a symbol because the frame knows the object that holds it by another source.

The number was a constant in the traced call, which read it of an object of its own.  Tracing the later call would take
the symbol, so the call is not stamped out.
"""

from __future__ import annotations

import functools

import pytest
import torch
import torch._dynamo
from torch import nn


def _function(k):
    return lambda: k


def _cached(k):
    @functools.lru_cache
    def cached():
        return k

    return cached


class _Scale:
    def __init__(self, k):
        self.k = k

    def __call__(self):
        return self.k


class Layer(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = scale

    def forward(self, x):
        return self.linear(self.linear(x).sin()).cos() * self.scale() + x


class Net(nn.Module):
    def __init__(self, scales):
        super().__init__()
        self.layers = nn.ModuleList(map(Layer, scales))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _run(make, *, flag=False, mark=False):
    """Results in eager and compiled as scales are replaced, and the number of compiles after each."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    known, found, compiles = make(2.0), [], []
    net, x = Net([make(3.0), *(make(2.0) for _ in range(4))]), torch.ones(2, 3)
    if mark:
        for layer in net.layers:
            layer.forward = torch.compiler.nested_compile_region(layer.forward)
    with torch._dynamo.config.patch(use_graph_deduplication=flag, verify_region_reuse=True):
        compiled = torch.compile(net, backend="eager")
        # The first layer's number changes, so it has a symbol from the second compile on; then the third layer has the
        # first layer's object; then that object gives way to another one of another number in both.
        for first, third in ((None, None), (known, known), (make(5.0),) * 2):
            if first is not None:
                net.layers[0].scale, net.layers[2].scale = first, third
            found.append((net(x), compiled(x)))
            compiles.append(torch._dynamo.utils.counters["frames"]["ok"])
    return found, compiles


@pytest.mark.parametrize("how", ["flag", "mark"])
@pytest.mark.parametrize("make", [_function, _cached, _Scale])
def test_a_call_that_would_take_the_symbol_is_traced(make, how):
    _, flat = _run(make)
    found, compiles = _run(make, **{how: True})
    for eager, compiled in found:
        assert torch.equal(eager, compiled)
    assert compiles == flat
    assert torch._dynamo.utils.counters["regions"]["verified"] > 0
