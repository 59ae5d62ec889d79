"""Operators whose bodies write to their operands: what reads those is in no body, as it is beside any other write."""

import pytest
import torch
import torch._dynamo
from testing.training_steps import train
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint


pytestmark = pytest.mark.usefixtures("bodies")
LAYERS = 5


class Made(torch.autograd.Function):
    """Its result may be written to: autograd saves nothing of it."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(3)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Writes(nn.Module):
    """A function of the program's writes to what the layer has read."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x):
        made = Made.apply(x)
        read = -((made + 1) * 0.5 + self.weight) - 2
        return read * 0.3 + Dirty.apply(made) * 0.1


class Stores(nn.Module):
    """A checkpointed part writes to a buffer that the layer has read."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, seen):
        def store(h):
            seen.add_(0.25)
            return h.sin() * 2

        h = (self.linear(x).tanh() + seen) * 0.5 - 1
        return checkpoint(store, h.sigmoid() + x, use_reentrant=False)


class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(LAYERS))
        self.register_buffer("seen", torch.ones(4))
        self.more = [self.seen] if layer is Stores else []

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, *self.more)
        return x


X = torch.linspace(-1, 1, 12).view(3, 4)


# The eager backend runs the write again where the checkpoint is recomputed, as eager does, and raises as eager does not.
@pytest.mark.parametrize(
    ("layer", "backend"), [(Writes, "eager"), (Writes, "aot_eager"), (Writes, "inductor"), (Stores, "aot_eager")]
)
def test_what_a_body_writes_to_is_known(layer, backend):
    wanted = train(lambda: Model(layer), X, backend, flag=False)
    counters.clear()
    torch.testing.assert_close(train(lambda: Model(layer), X, backend, flag=True), wanted)
    assert counters["graph_deduplication"]["operators_outlined"], "the rest of the layers is in bodies"
