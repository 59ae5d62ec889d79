"""Bodies under autocast that the compiled frame enters: Inductor's gradients are those of its flat graph, up to rounding."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            scale = 1 + (x.float() @ x.float().t()).softmax(-1).mean(-1, keepdim=True)
        return x + self.down(F.gelu(self.up(self.norm(x)))) * scale


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for block in self.blocks:
                x = block(x)
        return x


def _step(flag):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model, x = Stack(), torch.randn(4, 8, requires_grad=True)
    with torch._dynamo.config.patch(use_graph_deduplication=flag, graph_deduplication_lint=True):
        y = torch.compile(model, fullgraph=True)(x)
    y.pow(2).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("decompose", [False, True], ids=["casts_as_eager", "casts_fused"])
def test_gradients_are_those_of_the_flat_graph(decompose):
    with torch._inductor.config.patch(emulate_precision_casts=not decompose):
        wanted, found = _step(False), _step(True)
    assert counters["graph_deduplication"]["bodies"] == 1
    assert [g.dtype for g in found] == [g.dtype for g in wanted]
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)
