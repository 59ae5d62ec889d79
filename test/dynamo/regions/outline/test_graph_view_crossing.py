"""Values that a body must not take or return, because more is known or done to them outside than metadata says."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters


X = torch.linspace(0.1, 1.0, 6).view(2, 3)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, *more):
        return self.body(x, *more)


class Indexed(Layer):
    def body(self, x, k):
        return self.linear(x).sin() + x[k]


class Hooked(Layer):
    def body(self, x):
        h = self.linear(x)
        return h.sin(), h


class Counted(Layer):
    def body(self, x):
        return self.linear(x).sin(), torch.tensor(1)


class Stack(nn.Module):
    def __init__(self, kind, step):
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(4))
        self.step = step

    def forward(self, x):
        for n, layer in enumerate(self.layers):
            x = self.step(n, layer, x)
        return x


def _hook(numbers):
    def step(n, layer, x):
        x, h = layer(x)
        if n in numbers:
            h.register_hook(lambda g: g * 2)
        return x + h.cos()

    return step


def _take(n, layer, x):
    x, k = layer(x)
    return x + x[k]


CASES = {
    "a number that an operator of the body asks for": lambda: Stack(
        Indexed, lambda n, layer, x: layer(x, torch.tensor(1))
    ),
    "a number that an operator outside asks for": lambda: Stack(Counted, _take),
    "a hook on what each layer returns and uses": lambda: Stack(Hooked, _hook(range(4))),
    "a hook on what some layers return and use": lambda: Stack(Hooked, _hook((1, 3))),
}


def _gradients(model, run):
    run(X).sum().backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_as_without_regions(case, flag, monkeypatch):
    torch.manual_seed(0)
    model = CASES[case]()
    wanted = _gradients(model, model)
    model.zero_grad()
    if not flag:
        kind = type(model.layers[0])
        monkeypatch.setattr(kind, "body", torch.compiler.nested_compile_region(kind.body))
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        got = _gradients(model, torch.compile(model, backend="aot_eager", fullgraph=True))
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("write", ["element", "copy", "index_add"])
def test_layers_whose_results_are_only_written_into_what_is_returned(write):
    """The write has no user, and what it writes to was made without a gradient: one reaches the layers all the same."""
    layers = torch.nn.ModuleList(torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(5))) for _ in range(5))

    def model(x):
        for layer in layers:
            x = layer(x)
        found = torch.zeros(2, *x.shape)
        if write == "element":
            found[0] = x
        elif write == "copy":
            found[1].copy_(x)
        else:
            found.index_add_(0, torch.tensor([1]), x[None])
        return found

    def step(fn):
        x = torch.linspace(0, 1, 8).view(2, 4).requires_grad_()
        fn(x).sum().backward()
        return x.grad

    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        torch.testing.assert_close(step(torch.compile(model, backend="aot_eager")), step(model))
    assert counters["regions"]["reused"] >= 3
