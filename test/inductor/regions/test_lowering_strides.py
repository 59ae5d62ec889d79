"""Calls of one body whose operands come with other strides than those that the body was traced for."""

from __future__ import annotations

import operator

import pytest
import torch
from torch._inductor import fx_utils
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.regions import lowering
from torch._inductor.utils import fresh_cache
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule


# What is called directly is the overlay's while a program with regions is compiled.
pytestmark = pytest.mark.usefixtures("with_regions")
HOP = torch.ops.higher_order.invoke_subgraph


def _body(mode: FakeTensorMode) -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.view.default, (x, [8]))
    graph.output((y,))
    with mode:
        x.meta["val"] = torch.empty(4, 2)
        y.meta["val"] = x.meta["val"].view(8)
    return GraphModule({}, graph)


def _program(mode: FakeTensorMode) -> GraphModule:
    """Two calls, the second on other strides."""
    root = torch.nn.Module()
    root.body = _body(mode)
    graph = Graph()
    operands = [graph.placeholder("a"), graph.placeholder("b")]
    with mode:
        operands[0].meta["val"], operands[1].meta["val"] = torch.empty(4, 2), torch.empty(2, 4).t()
    body = graph.get_attr("body")
    calls = [graph.call_function(HOP, (body, "body", operand)) for operand in operands]
    graph.output(tuple(graph.call_function(operator.getitem, (call, 0)) for call in calls))
    program = GraphModule(root, graph)
    with mode:
        for call in calls:
            call.meta["val"] = (torch.empty(8),)
        for item in graph.find_nodes(op="call_function", target=operator.getitem):
            item.meta["val"] = item.args[0].meta["val"][0]
    return program


def test_the_code_of_a_body_is_that_of_its_graph():
    program = _program(FakeTensorMode())
    strided = torch.arange(8.0).view(2, 4).t()
    view_to_reshape(program)
    assert torch.equal(program.body(strided)[0], strided.reshape(8))
    assert torch.equal(program(strided, strided)[1], strided.reshape(8))


def test_metadata_is_brought_up_to_date_around_a_call_on_other_strides():
    mode = FakeTensorMode()
    program = _program(mode)
    view_to_reshape(program)
    updater = fx_utils.FakeTensorUpdater(program)
    with lowering.V.set_fake_mode(mode):
        assert updater.incremental_update() == 0
    (taken,) = program.body.graph.find_nodes(op="placeholder")
    assert taken.meta["val"].stride() == (2, 1)


def test_a_call_is_compiled_for_the_strides_of_its_body():
    mode = FakeTensorMode()
    program = _program(mode)
    subgraph = lowering.ir.Subgraph(name="body", graph_module=program.body)
    (taken,) = program.body.graph.find_nodes(op="placeholder")
    for call in program.graph.find_nodes(op="call_function", target=HOP):
        graph = torch._inductor.graph.GraphLowering(program)
        graph.current_node = call
        with lowering.V.set_graph_handler(graph):
            assert lowering._example_operands(subgraph) == [taken.meta["val"]]


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).sin() * 0.5 + x.cos()


def _sums_of_columns(layers, x):
    """The gradient of each layer's result is an expanded row, but for one, to which another is added."""
    for k, layer in enumerate(layers):
        y = layer(x)
        x = y.sum(0, keepdim=True).expand(4, 4) + (k == 2) * y
    return x.sum()


def test_a_gradient_that_the_body_takes_expanded_is_expanded():
    found = []
    for flag in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        layers = torch.nn.ModuleList(Layer() for _ in range(5))
        x = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
        with torch._dynamo.config.patch(use_graph_deduplication=flag), fresh_cache():
            torch.compile(_sums_of_columns)(layers, x).backward()
        found.append([x.grad, *(p.grad for p in layers.parameters())])
    torch.testing.assert_close(*found)
    torch._dynamo.reset()
