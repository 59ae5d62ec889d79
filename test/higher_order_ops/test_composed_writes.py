"""Bodies that write to operands, by operators that are composed of others: results and state are those of the flat graph."""

import pytest
import torch
import torch.nn.functional as F
from testing.cases import some
from torch import nn
from torch._dynamo.utils import counters


def masks(block):
    block.mask &= block.mask.logical_not()
    return block.mask


# Writes in place, by a composition, to a buffer of the layer.
WRITES = {
    "multiply_": lambda s, x: s.state.multiply_(0.5),
    "an operand of another call": lambda s, x: s.state.subtract_(s.state.square_(), alpha=0.5),
    "divide_ by a mode": lambda s, x: torch.ops.aten.divide_(s.state, 0.3, rounding_mode="floor"),
    "an overload": lambda s, x: torch.ops.aten.negative_.default(s.state),
    "fill_diagonal_": lambda s, x: s.square.fill_diagonal_(2.0)[0],
    "an operator of Python": lambda s, x: masks(s),
    "selu_": lambda s, x: F.selu(s.state, inplace=True),
    "relu6_ by position": lambda s, x: F.relu6(s.state, True),
    "rrelu_ by position": lambda s, x: F.rrelu(s.state, 0.1, 0.3, False, True),
    "a layer's own value": lambda s, x: F.selu((x * 2 + s.state.mul_(0.5)), inplace=True),
    "its only argument a keyword": lambda s, x: F.selu(input=s.state, inplace=True),
}


class Block(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.linear, self.write = nn.Linear(8, 8), write
        self.register_buffer("state", torch.rand(8) - 0.5)
        self.register_buffer("square", torch.rand(8, 8))
        self.register_buffer("mask", torch.tensor([True, False] * 4))

    def forward(self, x):
        return x + self.linear(x).sin() + self.write(self, x) + self.state + self.square.mean(0)


def called(write, backend, grad):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(write) for _ in range(4)])
    compiled = model if backend is None else torch.compile(model, backend=backend)
    with torch.set_grad_enabled(grad):
        results = [compiled(torch.ones(2, 8)).detach().clone() for _ in range(2)]
    return [*results, *(b.clone() for b in model.buffers())]


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize(
    "backend, grad", some([(b, g) for b in ("aot_eager", "inductor") for g in (False, True)], [("aot_eager", False)])
)
def test_a_body_writes_in_place_by_a_composition(name, backend, grad):
    wanted = called(WRITES[name], None, grad)
    with torch._dynamo.config.patch(use_graph_deduplication=True, graph_deduplication_lint=True):
        found = called(WRITES[name], backend, grad)
    assert counters["graph_deduplication"]["bodies"] >= 1
    torch.testing.assert_close(found, wanted)


def test_a_mark_too():
    """As in a network with batch norm that trains its statistics only."""

    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.act = nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4), nn.SELU(inplace=True)

        @torch.compiler.nested_compile_region
        def forward(self, x):
            return self.act(self.norm(self.conv(x)))

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model, x = nn.Sequential(*[Normalized() for _ in range(3)]), torch.randn(2, 4, 8)
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        found = [compiled(x), *(b.clone() for b in model.buffers())]
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.reset_running_stats()
        wanted = [model(x), *model.buffers()]
    torch.testing.assert_close(found, wanted)
    assert counters["regions"]["reused"] == 2
