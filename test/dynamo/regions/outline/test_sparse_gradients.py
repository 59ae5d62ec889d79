"""Operators whose gradient is sparse: no body can return one, so they stand outside of regions."""

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn


KINDS = {
    "embedding": lambda table, x, ids: F.embedding(ids, table, sparse=True),
    "embedding bag": lambda table, x, ids: F.embedding_bag(ids.unsqueeze(1), table, sparse=True),
    "gather": lambda table, x, ids: torch.gather(table, 0, ids.unsqueeze(1).expand(4, 8), sparse_grad=True),
    "method": lambda table, x, ids: table.gather(0, ids.unsqueeze(1).expand(4, 8), sparse_grad=True),
}


class Layer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.linear, self.norm, self.kind = nn.Linear(8, 8), nn.LayerNorm(8), kind
        self.table = nn.Parameter(torch.randn(10, 8))

    def forward(self, x, ids):
        return self.norm(self.linear(x).relu() + x) + KINDS[self.kind](self.table, x, ids)


class Model(nn.Module):
    def __init__(self, kind, marked):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(kind) for _ in range(4))
        self.call = (torch.compiler.nested_compile_region if marked else lambda fn: fn)(lambda layer, *a: layer(*a))

    def forward(self, x, ids):
        for layer in self.layers:
            x = self.call(layer, x, ids)
        return x


def _step(program, model):
    out = program(torch.linspace(-1, 1, 32).view(4, 8), torch.tensor([1, 2, 2, 3]))
    grads = torch.autograd.grad(out.sin().sum(), [*model.parameters()])
    return [g.layout for g in grads], [out, *(g.to_dense() for g in grads)]


# Inductor has no gather with a sparse gradient, with or without regions.
CASES = [(kind, "aot_eager") for kind in KINDS] + [("embedding", "inductor"), ("embedding bag", "inductor")]


@pytest.mark.parametrize(("kind", "backend"), CASES)
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "flag"])
def test_a_sparse_gradient_is_that_of_eager(kind, marked, backend):
    """AOTAutograd read the storage of a body's gradients, and failed."""
    torch._dynamo.reset()
    model = Model(kind, marked)
    with torch._dynamo.config.patch(use_graph_deduplication=not marked):
        layouts, found = _step(torch.compile(model, backend=backend, fullgraph=True), model)
    in_eager, wanted = _step(model, model)
    torch.testing.assert_close(found, wanted)
    assert layouts == in_eager and torch.sparse_coo in layouts


@pytest.mark.parametrize("grad", [True, False])
def test_it_is_in_a_body_where_there_is_no_gradient(grad):
    torch._dynamo.reset()
    graphs = []

    def keep(module, inputs):
        graphs.append(module)
        return module

    with torch.set_grad_enabled(grad):
        torch.compile(Model("embedding", marked=True), backend=keep)(torch.zeros(4, 8), torch.tensor([1, 2, 2, 3]))
    bodies = [m for name, m in graphs[0].named_modules() if name]
    in_bodies = [n for body in bodies for n in body.graph.nodes if n.target is F.embedding]
    assert bodies and bool(in_bodies) is not grad
