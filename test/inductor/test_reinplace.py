"""Layers that write to tensors of the program, without gradients: what the program keeps of a value between two writes."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, cache):
        cache.mul_(0.5)
        cache.add_(self.a(x))
        return nn.functional.gelu(torch.tanh(cache @ self.b(x).t()) @ x) + x


class Model(nn.Module):
    """``keep(caches, others)``: what is kept after each of the passes over all layers."""

    def __init__(self, keep, passes, mark):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.keep, self.passes = keep, passes
        if mark:
            for layer in self.layers:
                layer.forward = torch.compiler.nested_compile_region(layer.forward)

    def forward(self, x, caches, others):
        kept = []
        for _ in range(self.passes):
            for layer, cache in zip(self.layers, caches):
                x = layer(x, cache)
            kept.append(self.keep(caches, others))
        return x, kept


def _copies(caches, others):
    return [cache.clone() for cache in caches]


def _copies_of_views(caches, others):
    return [cache.t().clone() for cache in caches], [cache[:2].clone() for cache in caches]


def _casts(caches, others):
    return [cache.double().float() for cache in caches]


def _in_other_tensors(caches, others):
    for cache, other in zip(caches, others):
        other.copy_(cache)
    return []


def _made_of_them(caches, others):
    return [cache * 2 for cache in caches], caches[0].sum()


def _given():
    torch.manual_seed(1)
    return torch.randn(4, 4), [torch.randn(4, 4) for _ in range(4)], [torch.zeros(4, 4) for _ in range(4)]


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("keep", [_copies, _copies_of_views, _casts, _in_other_tensors, _made_of_them])
@pytest.mark.parametrize("mark", [True, False], ids=["mark", "flag"])
def test_what_is_kept_of_a_value_is_not_written_later(keep, passes, mark):
    """The copy was taken away, and a result was the cache. Or it had the value of the last write."""
    torch._dynamo.reset()
    model, eager = Model(keep, passes, mark), Model(keep, passes, False)
    with torch._dynamo.config.patch(use_graph_deduplication=not mark), torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        given, alike = _given(), _given()
        found, expected = compiled(*given), eager(*alike)
        torch.testing.assert_close((found, given), (expected, alike), rtol=1e-4, atol=1e-4)
        # The second call writes to the caches again.
        compiled(*given), eager(*alike)
        torch.testing.assert_close((found, given), (expected, alike), rtol=1e-4, atol=1e-4)
