"""An export is the same with the flag and without it: its regions come from marks only."""

from __future__ import annotations

import pytest
import torch
import torch.export
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return x + self.second(self.first(x).relu()).sigmoid()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return torch.cond(x.sum() > 0, lambda x: x.sin().cos().sin().cos(), lambda x: x.cos().sin().cos().sin(), (x,))


def program(strict, flag, net):
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        return torch.export.export(net, (torch.ones(2, 4),), strict=strict)


@pytest.mark.parametrize("strict", [True, False])
def test_the_program_is_that_without_the_flag(strict):
    torch.manual_seed(0)
    net = Net()
    with_flag, without = (program(strict, flag, net) for flag in (True, False))
    assert str(with_flag.graph) == str(without.graph)
    assert with_flag.module_call_graph == without.module_call_graph or str(with_flag) == str(without)
    assert not with_flag.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    x = torch.randn(2, 4)
    torch.testing.assert_close(with_flag.module()(x), net(x))
    torch.testing.assert_close(torch.export.unflatten(with_flag)(x), net(x))


def test_a_capture_for_export_is_that_without_the_flag():
    from torch._dynamo.functional_export import dynamo_graph_capture_for_export

    torch.manual_seed(0)
    net, graphs = Net(), []
    for flag in (True, False):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(use_graph_deduplication=flag):
            graphs.append(str(dynamo_graph_capture_for_export(net)(torch.ones(2, 4)).graph))
    assert graphs[0] == graphs[1]


def test_the_flag_is_back_after_an_export():
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        program(True, True, Net())
        assert torch._dynamo.config.use_graph_deduplication
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward

        net = Net()
        torch.compile(net, backend=backend)(torch.ones(2, 4))
    calls = graphs[0].graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    assert len(calls) >= 3
