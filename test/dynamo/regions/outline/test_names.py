"""Where a call of a body says that it comes from, and what nodes around it are called (regions/outline/names.py)."""

from __future__ import annotations

import linecache
import re

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import AotEagerAndRecordGraphs, EagerAndRecordGraphs


X = torch.linspace(0, 1, 16).view(4, 4)


def block(x):
    y = torch.relu(x @ x) + x
    return torch.tanh(y) * 2 + torch.cos(y)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return block(self.linear(x))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer() for _ in range(4)])

    def forward(self, x):
        a = self.layers[0](x)
        b = self.layers[1](a)
        c = self.layers[2](b)
        return a + self.layers[3](c)


def graph_of(program, *args, flag: bool = False) -> torch.fx.GraphModule:
    backend = EagerAndRecordGraphs()
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        torch.compile(program, backend=backend, fullgraph=True)(*args)
    (graph,) = backend.graphs
    return graph


def calls_in(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)


def last_line(node: torch.fx.Node) -> str:
    """The line of the program that a node's stack trace ends in."""
    file, line = re.findall(r'File "(.*)", line (\d+)', node.meta["stack_trace"])[-1]
    return linecache.getline(file, int(line)).strip()


def marked(x):
    region = torch.compiler.nested_compile_region(block)
    a = region(x)
    b = region(a)
    c = region(b)
    return a + region(c)


@pytest.mark.parametrize("kind", ["marked", "automatic"])
def test_the_stack_trace_of_a_call_ends_where_the_program_calls(kind):
    """The first call is traced, the others are stamped out: each names its own line, and no line of the region."""
    if kind == "marked":
        graph = graph_of(marked, X)
        wanted = ["a = region(x)", "b = region(a)", "c = region(b)", "return a + region(c)"]
    else:
        graph = graph_of(Model(), X.clone().requires_grad_(), flag=True)
        calls = [
            f"{name} = self.layers[{k}]({given})" for k, name, given in ((0, "a", "x"), (1, "b", "a"), (2, "c", "b"))
        ]
        wanted = [*calls, "return a + self.layers[3](c)"]
    calls = calls_in(graph)
    assert [last_line(call) for call in calls] == wanted
    for call, line in zip(calls, wanted, strict=True):
        assert last_line(call.args[0]) == line  # the node that stands for the body
        assert {last_line(result) for result in call.users} == {line}
    (body,) = {call.args[0].target for call in calls}
    inside = [n for n in getattr(graph, body).graph.nodes if n.op == "call_function"]
    assert {last_line(n) for n in inside} - {"return block(self.linear(x))"} == {
        "y = torch.relu(x @ x) + x",
        "return torch.tanh(y) * 2 + torch.cos(y)",
    }


def test_the_stack_trace_of_a_call_inside_a_region_ends_there():
    inner = torch.compiler.nested_compile_region(block)

    @torch.compiler.nested_compile_region
    def outer(x):
        y = inner(x)
        z = inner(y.sin())
        return y + z

    graph = graph_of(lambda x: outer(outer(x)), X)
    (name,) = {call.args[0].target for call in calls_in(graph)}
    assert [last_line(call) for call in calls_in(getattr(graph, name))] == ["y = inner(x)", "z = inner(y.sin())"]


def test_calls_that_return_other_values_keep_their_own_lines():
    """A stamp that is put back as a call of its own is where it was."""

    @torch.compiler.nested_compile_region
    def region(x):
        return block(x), x.sin().exp()

    def program(x):
        a, b = region(x)
        c, _ = region(a)
        d, _ = region(c)
        return d * b

    x = X.clone().requires_grad_()
    graph = graph_of(program, x)
    # The first call's body is called once, and put back.
    assert [last_line(call) for call in calls_in(graph)] == ["c, _ = region(a)", "d, _ = region(c)"]


def test_backends_are_told_the_line_of_the_call():
    backend = AotEagerAndRecordGraphs()
    torch.compile(marked, backend=backend, fullgraph=True)(X)
    lines = [last_line(call) for call in calls_in(backend.fw_graphs[0])]
    assert lines == ["a = region(x)", "b = region(a)", "c = region(b)", "return a + region(c)"]


def test_nodes_are_called_what_the_program_calls_them_where_they_are():
    graph = graph_of(marked, X)
    assert [n.name for n in graph.graph.nodes if n.op != "output"] == [
        "l_x_",
        *("subgraph_0", "invoke_subgraph", "a"),
        *("subgraph_1", "invoke_subgraph_1", "b"),
        *("subgraph_2", "invoke_subgraph_2", "c"),
        *("subgraph_3", "invoke_subgraph_3", "getitem_3"),
        "add",
    ]
    body = [n.name for n in graph.subgraph_0.graph.nodes if n.op != "output"]
    assert body == ["l_x_", "matmul", "relu", "y", "tanh", "mul", "cos", "add_1"]
    graph.graph.lint()
    graph.subgraph_0.graph.lint()


def test_names_stay_unique_behind_a_break_and_in_bodies_of_bodies():
    inner = torch.compiler.nested_compile_region(block)

    @torch.compiler.nested_compile_region
    def outer(x):
        add = inner(x)
        add = add + inner(add)
        return add + add.sum()

    def program(getitem, add_1):
        add = outer(getitem)
        torch._dynamo.graph_break()
        return outer(add) + outer(add_1) + getitem

    backend = EagerAndRecordGraphs()
    found = torch.compile(program, backend=backend)(X, X + 1)
    torch.testing.assert_close(found, program(X, X + 1))
    for graph in backend.graphs:
        for module in graph.modules():
            if isinstance(module, torch.fx.GraphModule):
                names = [n.name for n in module.graph.nodes]
                assert len(set(names)) == len(names)
                module.graph.lint()


def test_a_program_without_regions_keeps_its_names():
    def program(x):
        add = x + 1
        return (add + 2).sin() + (add + 3).sin()

    names = [n.name for n in graph_of(program, X).graph.nodes]
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        torch._dynamo.reset()
        assert [n.name for n in graph_of(program, X, flag=True).graph.nodes] == names
