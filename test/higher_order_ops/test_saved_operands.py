"""Note [A call saves what it took]: a write behind a call does not change what its backward is given."""

import pytest
import torch
import torch._dynamo
from functorch.compile import make_boxed_func
from testing.training_steps import train
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition


LAYERS = 4


class Layer(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), norm
        self.register_buffer("average", torch.linspace(0.5, 1.5, 4))

    def forward(self, x):
        x = self.norm(self.linear(x)).tanh()
        self.average.lerp_(x.detach().mean(0), 0.1)
        return x.sin() * 2


class Model(nn.Module):
    """With ``shared``, all layers write to the statistics of one norm, so each takes what the one before has left."""

    def __init__(self, shared):
        super().__init__()
        norm = nn.BatchNorm1d(4)
        self.layers = nn.ModuleList(Layer(norm if shared else nn.BatchNorm1d(4)) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def _steps(shared, backend, flag):
    x = torch.linspace(-1, 1, 12).view(3, 4)
    return train(lambda: Model(shared), x, backend, flag, steps=2)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients_and_statistics_are_those_of_flat(shared, backend):
    wanted = _steps(shared, backend, flag=False)
    counters.clear()
    torch.testing.assert_close(_steps(shared, backend, flag=True), wanted)
    assert counters["graph_deduplication"]["bodies"], "the layers have a body"


def test_a_call_takes_the_input_itself_and_nothing_is_copied_for_it():
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return make_boxed_func(graph)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition)
    with functorch_config.patch(enable_autograd_cache=False):
        _steps(False, backend, flag=True)
    forward, backward = (graph.graph for graph in graphs[:2])
    calls = forward.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    assert len(calls) == LAYERS
    assert not forward.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert backward.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
