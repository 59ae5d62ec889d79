"""Regions in regions: the work of a compile goes by how deep they are nested, and does not double with each level."""

import collections
import sys

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch._higher_order_ops.passes.inline_invoke_subgraph import inline_invoke_subgraph


region = torch.compiler.nested_compile_region
X = torch.linspace(0.1, 1.0, 8)


def nested(depth):
    """A region that calls a region that calls a region..., called twice."""

    def innermost(x):
        return torch.sin(x) + 1

    function = innermost
    for _ in range(depth):

        def around(x, inner=region(function)):
            return inner(x).cos() * 2

        function = around
    outermost = region(function)
    return lambda x: outermost(outermost(x))


def compile_nested(depth, backend):
    torch._dynamo.reset()
    counters.clear()
    program = nested(depth)
    torch.testing.assert_close(torch.compile(program, backend=backend)(X), program(X))
    assert dict(counters["regions"]) == {"traced": depth + 1, "reused": 1}


def calls_of(depth, backend):
    """How often each Python function is called in a compile."""
    calls = collections.Counter()

    def count(frame, event, argument):
        if event == "call":
            calls[frame.f_code.co_name] += 1

    compile_nested(depth, backend)  # what is made once for a program
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        compile_nested(depth, backend)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_each_module_of_a_graph_is_visited_and_written_once(backend):
    calls = [calls_of(depth, backend) for depth in (5, 10, 20)]
    for name in ("recompile", "find_nodes"):
        few, some, many = (each[name] for each in calls)
        assert many - some == 2 * (some - few) > 0, (name, few, some, many)
    # A region's read set has all that the regions in it read, each way from the region's arguments once.
    assert calls[2]["__hash__"] < 4 * calls[1]["__hash__"]
    assert calls[2].total() < 3 * calls[1].total()


def test_all_regions_of_a_deep_graph_are_put_back_when_asked_for():
    graphs = []

    def backend(graph, inputs):
        graphs.append(inline_invoke_subgraph(graph))
        graph.recompile()
        return graph.forward

    with torch._dynamo.config.patch(inline_single_use_invoke_subgraph=False):
        compile_nested(20, backend)
    (graph,) = graphs
    assert not graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    assert not list(graph.children())


def test_body_that_is_put_back_is_no_part_of_the_graph():
    """What the graph does not call is not compiled with it, or moved to another device with it."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compile_nested(3, backend)
    (graph,) = graphs
    called = {node.target for node in graph.graph.find_nodes(op="get_attr")}
    assert {name for name, _ in graph.named_children()} == called and len(called) == 1
    (body,) = graph.children()
    assert not list(body.children())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_body_is_written_anew_when_a_body_in_it_is_put_back(backend):
    """Autograd runs the body's code: what it no longer has must not be in it."""
    torch._dynamo.reset()
    program = nested(3)
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    torch.compile(program, backend=backend)(x).sum().backward()
    program(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
