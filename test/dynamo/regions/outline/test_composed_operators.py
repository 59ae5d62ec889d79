"""Operators that Dynamo records as one node and that are composed of many: a repeat of one is worth a body."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.regions.outline.bodies import COMPOSED
from torch._dynamo.utils import counters


STEPS = 8
CELLS = {
    "gru_cell": nn.GRUCell,
    "lstm_cell": nn.LSTMCell,
    "rnn_tanh_cell": nn.RNNCell,
    "rnn_relu_cell": lambda *sizes: nn.RNNCell(*sizes, nonlinearity="relu"),
}


class Recurrent(nn.Module):
    """What readers of the cell's states return is stacked."""

    def __init__(self, cell):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.read = cell(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        state, results = None, []
        for step in x.unbind(1):
            state = self.cell(step, state)
            results.append(self.read(state[0] if isinstance(state, tuple) else state))
        return torch.stack(results, 1)


def train(model, step):
    torch.manual_seed(1)
    x = torch.randn(2, STEPS, 8, requires_grad=True)
    out = step(x)
    return [out, *torch.autograd.grad(out.square().sum(), [x, *model.parameters()])]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_loop_of_cells_has_a_body(cell, backend):
    model = Recurrent(CELLS[cell])
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        found = train(model, torch.compile(model, backend=backend, fullgraph=True))
    torch.testing.assert_close(found, train(model, model))
    # The first state is none of the cell's, and the last goes nowhere.
    assert counters["graph_deduplication"]["calls"] >= STEPS - 2


def attention(x):
    weight = torch.ones(24, 8)
    given = (x, x, x, 8, 2, weight, torch.ones(24), None, None, False, 0.0, torch.eye(8), torch.ones(8))
    return nn.functional.multi_head_attention_forward(*given, training=False)[0]


PROGRAMS = {
    **{name: lambda x, make=make: make(8, 8)(x, None) for name, make in CELLS.items()},
    "multi_head_attention_forward": attention,
}


@pytest.mark.parametrize("name", COMPOSED)
def test_how_many_operators_one_is_composed_of(name):
    torch.manual_seed(0)
    made = []

    def count(graph, _):
        made.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph

    torch._dynamo.reset()
    sizes = (3, 2, 8) if name == "multi_head_attention_forward" else (2, 8)
    with torch.no_grad():
        torch.compile(PROGRAMS[name], backend=aot_autograd(fw_compiler=count))(torch.randn(*sizes))
    # The programs make a few tensors besides.
    assert COMPOSED[name] <= made[0] + 2
    assert made[0] <= COMPOSED[name] + 8
