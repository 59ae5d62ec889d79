"""Layers that hold a tensor each, whose length moves, and what a compile guards of sizes."""

import contextlib

import pytest
import torch
from torch import nn


LAYERS = 5
X = torch.linspace(-1, 1, 8).view(2, 4)


class Layer(nn.Module):
    def __init__(self, kind, k):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.read = getattr(self, kind)
        self.kept = self.other = None

    def forward(self, x, mask):
        return x + self.second(self.read(self.first(x).tanh(), mask)).sin()

    def attends(self, x, mask):
        """Its length is a size of what the layer computes, and of nothing that it returns."""
        return torch.softmax(x @ self.kept.t(), -1) @ self.kept

    def attends_to_two(self, x, mask):
        """The keys and the values have symbols of their own, which must be one number."""
        return torch.softmax(x @ self.kept.t(), -1) @ self.other

    def adds_the_mask(self, x, mask):
        """All layers add one mask, so each length is the mask's."""
        return torch.softmax(x @ self.kept.t() + mask, -1) @ self.kept

    def asks_for_its_length(self, x, mask):
        return x * 2 if self.kept.size(0) > 4 else x * self.kept.size(0)

    def compares_with_the_mask(self, x, mask):
        return x * 2 if self.kept.size(0) == mask.size(0) else x * 3

    def compares_its_two(self, x, mask):
        return x * 2 if self.kept.size(0) < self.other.size(0) else x * 3

    def takes_half(self, x, mask):
        n = self.kept.size(0) // 2
        return torch.softmax(x @ self.kept[:n].t(), -1) @ self.kept[:n]

    def grows(self, x, mask):
        self.kept = torch.cat([self.kept, x])
        return torch.softmax(x @ self.kept.t(), -1) @ self.kept

    def strides_over_the_base(self, x, mask):
        """The view's base has a length of its own."""
        return x + self.kept.as_strided((2, 4), (4, 1)).sum() * self.kept.size(0)

    def returns_its_length(self, x, mask):
        return x * self.kept.size(0) + self.kept.sum()


KINDS = [name for name in vars(Layer) if name not in ("__init__", "forward") and not name.startswith("__")]


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(kind, k) for k in range(LAYERS))

    def hold(self, length, other=None):
        for k, layer in enumerate(self.layers):
            layer.kept = torch.linspace(k, 1, length * 4).view(length, 4)
            layer.other = torch.linspace(k, 2, (other or length) * 4).view(-1, 4)
        return torch.linspace(0, 1, length)

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return x


@contextlib.contextmanager
def guards_on_sizes():
    """Collects, for each compile of a model within, the guards on sizes."""
    found = []
    env = torch.fx.experimental.symbolic_shapes.ShapeEnv
    guards = env.produce_guards_verbose

    def noting(self, *args, **kwargs):
        made = guards(self, *args, **kwargs)
        exprs = sorted(made[0].exprs)
        if any("L['self']" in expr for expr in exprs):  # Inductor traces patterns too
            found.append(exprs)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(env, "produce_guards_verbose", noting)
        yield found
