"""The code of the graph around calls of regions is written only where that changes something."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import compile_utils, partitioners
from torch.fx import Graph, GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module


@pytest.fixture(autouse=True)
def _with_regions(with_regions):
    """What is tested here runs while a program with regions is compiled."""


invoke = torch.ops.higher_order.invoke_subgraph


@torch.compiler.nested_compile_region
def block(x, weight):
    return (x @ weight).sin()


class Backend:
    """aot_eager, which keeps the graphs."""

    def __init__(self):
        self.graphs = {}

    def compile(self, program):
        def keep(name):
            def compiler(gm, _):
                from functorch.compile import make_boxed_func

                self.graphs[name] = gm
                return make_boxed_func(gm.forward)

            return compiler

        backend = aot_autograd(
            fw_compiler=keep("forward"),
            bw_compiler=keep("backward"),
            partition_fn=partitioners.min_cut_rematerialization_partition,
        )
        torch._dynamo.reset()
        return torch.compile(program, backend=backend, fullgraph=True)


def check(program, arguments, compiled):
    results = []
    for f in (program, compiled):
        given = [a.clone().requires_grad_() for a in arguments]
        result = f(*given)
        result.sum().backward()
        results.append([result.detach(), *(a.grad for a in given)])
    torch.testing.assert_close(results[1], results[0])


X, WEIGHTS = torch.randn(3, 4), [torch.randn(4, 4) for _ in range(3)]


def _chain(x, *weights):
    for weight in weights:
        x = block(x, weight)
    return x


def test_the_code_of_the_backward_is_not_written_again_where_it_is_moved(monkeypatch):
    backend, written = Backend(), []
    write = GraphModule.recompile

    def recompile(self):
        written.append([n.name for n in self.graph.find_nodes(op="placeholder")])
        return write(self)

    compiled = backend.compile(_chain)
    monkeypatch.setattr(GraphModule, "recompile", recompile)
    check(_chain, [X, *WEIGHTS], compiled)
    backward = backend.graphs["backward"]
    assert isinstance(backward, _LazyGraphModule)
    takes = [n.name for n in backward.graph.find_nodes(op="placeholder")]
    # Once when stock has ordered it anew, and once when it runs.
    assert written.count(takes) == 2


@pytest.mark.parametrize("lazy", [False, True])
def test_a_module_becomes_lazy_only_where_modules_are(lazy):
    graph = Graph()
    body = torch.fx.symbolic_trace(lambda x: (x.sin(),))
    x = graph.placeholder("x")
    call = graph.call_function(invoke, (graph.get_attr("body"), "body", x))
    other = graph.call_function(torch.ops.aten.cos.default, (x,))
    item = graph.call_function(compile_utils.operator.getitem, (call, 0))
    graph.output((item, other))
    gm = GraphModule({"body": body}, graph)
    gm.meta["kept"] = 1
    with _use_lazy_graph_module(lazy):
        raised = compile_utils.raise_getitems(gm)
    assert isinstance(raised, _LazyGraphModule) == lazy and raised.meta == {"kept": 1}
    assert call.next is item
    torch.testing.assert_close(raised(X), (X.sin(), X.cos()))
