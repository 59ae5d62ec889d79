"""A tensor with the conj or neg bit is no operand of a region: no call of one could be dispatched on it."""

import pytest
import torch
import torch._dynamo
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("factor", torch.linspace(-1, 1, 12).view(3, 4).to(torch.complex64).conj())


class Conjugate(Block):
    def forward(self, x, c):
        y = self.norm(self.linear(x))
        return y + (c * y).real


class Negative(Block):
    def forward(self, x, c):
        return self.norm(self.linear(x).relu() + x) + c.imag


class OfTheLayer(Block):
    def forward(self, x, c):
        y = self.norm(self.linear(x))
        return y + (self.factor * y).real


class Handed(Block):
    def forward(self, x, c):
        return (torch.complex(x, self.norm(self.linear(x))) + c).conj().real


class Model(nn.Module):
    def __init__(self, kind, made):
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(4))
        self.made = made

    def forward(self, x, c):
        c = torch.complex(x, x).conj() if self.made else c
        for layer in self.layers:
            x = layer(x, c)
        return x


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("made", [True, False], ids=["made", "given"])
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "flag"])
@pytest.mark.parametrize("kind", [Conjugate, Negative, OfTheLayer, Handed])
def test_an_operand_with_a_lazy_bit(kind, marked, made, backend):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model(kind, made)
    x, c = torch.randn(3, 4), torch.randn(3, 4, dtype=torch.complex64).conj()
    expected = model(x, c)
    expected.sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    if marked:
        for layer in model.layers:
            layer.forward = torch.compiler.nested_compile_region(layer.forward)
    with torch._dynamo.config.patch(use_graph_deduplication=not marked):
        found = torch.compile(model, backend=backend, fullgraph=True)(x, c)
        found.sum().backward()
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip((p.grad for p in model.parameters()), gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
