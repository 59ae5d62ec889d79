"""Layers that ask whether two of their tensors are one object, as attention asks ``key is value``."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters


class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("kept", torch.arange(16.0).view(4, 4))


NAMED = torch.arange(16.0).view(4, 4)


def _work(q, k, layer, same):
    return layer.b(layer.a(q).tanh()) * (2 if same else 3) + k


def _by_is(q, k, layer):
    return _work(q, k, layer, k is q)


def _by_key(q, k, layer):
    return _work(q, k, layer, k in {q: 1})


def _with_the_layers(q, k, layer):
    return _work(q, k, layer, k is layer.kept)


def _with_a_global(q, k, layer):
    return _work(q, k, layer, k is NAMED)


# What a layer is given as its second tensor. Dynamo's operators return the same object where eager does.
GIVEN = {
    "input": lambda x, kept: x,
    "input, contiguous": lambda x, kept: x.contiguous(),
    "input, viewed": lambda x, kept: x.view(4, 4),
    "kept": lambda x, kept: kept[0],
    "kept, of its type": lambda x, kept: kept[0].to(torch.float32),
    "kept, viewed": lambda x, kept: kept[0].view(4, 4),
    "another's": lambda x, kept: kept[1],
    "another's, contiguous": lambda x, kept: kept[1].contiguous(),
    "global": lambda x, kept: NAMED,
    "global, contiguous": lambda x, kept: NAMED.contiguous(),
}
# In order: an object and then none, and the other way round.
ORDERS = {
    _by_is: [
        ("input, contiguous", "input, viewed", "input"),
        ("input, viewed", "input, contiguous", "input"),
        ("kept", "input", "input, viewed"),
    ],
    _by_key: [("input, contiguous", "input, viewed", "input"), ("input, viewed", "input", "kept")],
    _with_the_layers: [
        ("kept", "kept, viewed", "kept, of its type"),
        ("kept, viewed", "kept", "kept, of its type"),
        ("kept, viewed", "kept, of its type", "another's"),
        ("another's", "kept", "another's, contiguous"),
        ("another's, contiguous", "kept, of its type", "kept, viewed"),
        ("global", "kept", "input, contiguous"),
    ],
    _with_a_global: [
        ("global", "kept, viewed", "global, contiguous"),
        ("kept, viewed", "global", "global, contiguous"),
        ("kept", "global, contiguous", "kept, viewed"),
    ],
}
CASES = [(body, order) for body, orders in ORDERS.items() for order in orders]


class Frame(nn.Module):
    """Four calls; the third one is given what the first one was."""

    def __init__(self, body, order):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Kept() for _ in range(5))
        self.body, self.given = body, [GIVEN[name] for name in (*order[:2], order[0], order[2])]

    def forward(self, x):
        out = []
        for i, given in enumerate(self.given):
            out.append(self.body(x, given(x, (self.layers[i].kept, self.layers[i + 1].kept)), self.layers[i]))
        return out


@pytest.mark.parametrize(("body", "order"), CASES)
def test_a_call_is_told_which_of_its_tensors_are_one_object(body, order):
    """Tensors were told apart by their nodes: ``x.contiguous()`` by another one than ``x``, of which it is the object.

    And a tensor of the frame's that the traced call was given was taken for one that the layer holds.
    """
    x = torch.randn(4, 4)
    expected = Frame(body, order)(x)
    torch._dynamo.reset()
    frame = Frame(torch.compiler.nested_compile_region(body), order)
    with torch.no_grad():
        found = torch.compile(frame, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, q, k):
        return _work(q, k, self, q is k)


class Model(nn.Module):
    def __init__(self, same):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.same = nn.ModuleList(Layer() for _ in range(6)), same

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            h = x[:, :]
            x = layer(h, h.contiguous() if self.same(i) else h.view(h.shape))
        return x


def test_layers_of_which_some_are_given_one_tensor_twice():
    counters.clear()
    torch._dynamo.reset()
    model, x = Model(lambda i: i % 2), torch.randn(4, 4)
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        found = torch.compile(model, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(found, model(x), rtol=0, atol=0)
    assert counters["regions"]["reused"]


def test_a_tensor_that_operators_return_as_it_is_keeps_no_layer_from_reuse():
    """All layers are given ``mask.to(mask.dtype)``, as transformers does."""

    class Masked(Model):
        def forward(self, x, mask):
            mask = mask.to(x.dtype)
            for layer in self.layers:
                x = layer(x, mask)
            return x

    counters.clear()
    torch._dynamo.reset()
    model, x, mask = Masked(None), torch.randn(4, 4), torch.randn(4, 4)
    with torch._dynamo.config.patch(use_graph_deduplication=True), torch.no_grad():
        found = torch.compile(model, backend="eager", fullgraph=True)(x, mask)
    torch.testing.assert_close(found, model(x, mask), rtol=0, atol=0)
    assert counters["regions"]["reused"] == 5


def _attribute(t, linear):
    return linear(t).tanh() * getattr(t, "scale", 1.0)


def _has_attribute(t, linear):
    return linear(t).tanh() * (2.0 if hasattr(t, "scale") else 1.0)


def _gradient(t, linear):
    return linear(t).tanh() * (1.0 if t.grad is None else 2.0)


class Asks(nn.Module):
    def __init__(self, asks):
        super().__init__()
        self.a, self.b, self.asks = nn.Linear(4, 4), nn.Linear(4, 4), asks

    def forward(self, t):
        return self.b(self.asks(t, self.a))


class GivenAnInput(nn.Module):
    """The third layer is given an input, which the frame has read before; the others what the frame computes."""

    def __init__(self, asks, mark):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Asks(asks) for _ in range(4))
        for layer in self.layers if mark else ():
            layer.forward = torch.compiler.nested_compile_region(layer.forward)

    def forward(self, x, given):
        size = given.sum()
        first, second, third, fourth = self.layers
        return first(x * 1), second(x * 2), third(given), fourth(x * 3), size


@pytest.mark.parametrize("mark", [True, False], ids=["mark", "flag"])
@pytest.mark.parametrize("asks", [_attribute, _has_attribute, _gradient])
def test_an_input_is_asked_for_what_a_computed_tensor_has_not(asks, mark):
    """A layer that was traced with a computed tensor stood for one that is given an input, with no guard on it."""
    torch._dynamo.reset()
    x, given = torch.randn(2, 4), torch.randn(2, 4)
    model, eager = GivenAnInput(asks, mark), GivenAnInput(asks, False)
    with torch._dynamo.config.patch(use_graph_deduplication=not mark), torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, given), eager(x, given), rtol=0, atol=0)
        given.scale, given.grad = 3.0, torch.ones(2, 4)
        torch.testing.assert_close(compiled(x, given), eager(x, given), rtol=0, atol=0)
