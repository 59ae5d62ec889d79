"""Nodes are copied as by stock, also where ours takes a shorter way."""

import warnings

import pytest
import torch
import torch._dynamo
from torch.fx import Graph, GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torch_regions.overlay import stock


def _symbol():
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode.from_tensor(torch.empty(5, 7), static_shapes=False).shape[0]


def _copied(copy, args, kwargs=None):
    """A graph with a copy of one call that ``copy`` has made, and the warnings that it gave."""
    first = Graph()
    x, y = first.placeholder("x"), first.placeholder("y")
    places = {"x": x, "y": y}
    args = torch.fx.node.map_aggregate(args, lambda a: places.get(a, a) if isinstance(a, str) else a)
    kwargs = torch.fx.node.map_aggregate(kwargs or {}, lambda a: places.get(a, a) if isinstance(a, str) else a)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original = first.call_function(torch.add, args, kwargs)
    original.meta["val"] = 3
    graph = Graph()
    new = {node: graph.placeholder(node.name) for node in (x, y)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        node = copy(graph, original, new.__getitem__)
    graph.output(node)
    graph.lint()
    return graph, node, [str(w.message) for w in caught]


CASES = {
    "none": ((), None),
    "nodes": (("x", "y"), None),
    "nested": ((["x", ("y", 2)], slice(None), {"a": "x"}), None),
    "keywords": (("x",), {"alpha": 2}),
    "constants": (("x", 1, 2.0, True, None, torch.float32, torch.device("cpu"), torch.strided), None),
    "other types": (("x", torch.contiguous_format, torch.Size([2])), None),
}


@pytest.fixture(autouse=True)
def _with_regions(with_regions):
    """What is tested here runs while a program with regions is compiled."""


@pytest.mark.parametrize("case", CASES)
def test_a_copy_is_the_one_that_stock_makes(case):
    args, kwargs = CASES[case]
    (ours, node, warned), (theirs, other, warned_too) = (
        _copied(copy, args, kwargs) for copy in (Graph.node_copy, stock("torch.fx.graph:Graph.node_copy"))
    )
    assert str(ours) == str(theirs)
    assert (node.name, repr(node.args), repr(node.kwargs)) == (other.name, repr(other.args), repr(other.kwargs))
    assert type(node.args) is type(other.args) and type(node.kwargs) is type(other.kwargs)
    assert [len(p.users) for p in ours.nodes] == [len(p.users) for p in theirs.nodes]
    assert list(map(str, node.all_input_nodes)) == list(map(str, other.all_input_nodes))
    assert warned == warned_too
    assert node.meta == {"val": 3}


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: [s], lambda s: (1, [s])])
def test_a_symbolic_number_is_warned_of(wrap):
    _, _, warned = _copied(Graph.node_copy, ("x", wrap(_symbol())))
    assert len(warned) == 1 and "Raw SymInt" in warned[0]


def test_an_argument_that_becomes_a_symbolic_number_is_warned_of():
    first = Graph()
    node = first.call_function(torch.sin, (first.placeholder("x"),))
    symbol = _symbol()
    with pytest.warns(UserWarning, match="Raw SymInt"):
        assert Graph().node_copy(node, lambda n: symbol).args == (symbol,)


def test_an_argument_is_transformed_once():
    first, seen = Graph(), []
    x = first.placeholder("x")
    node = first.call_function(torch.add, (x, x))
    graph = Graph()
    new = graph.placeholder("x")
    graph.node_copy(node, lambda n: (seen.append(n), new)[1])
    assert seen == [x, x]


def test_a_hook_sees_the_arguments():
    graph = Graph()
    module, seen = GraphModule(torch.nn.Module(), graph), []
    module._register_create_node_hook(lambda node: seen.append(node.args))
    x = module.graph.placeholder("x")
    module.graph.node_copy(module.graph.call_function(torch.sin, (x,)))
    assert seen[-2:] == [(x,), (x,)]


def test_a_graph_that_makes_its_nodes_itself():
    class Own(Graph):
        def create_node(self, op, target, args=None, *rest, **more):
            made.append(args)
            return super().create_node(op, target, args, *rest, **more)

    made, graph = [], Own()
    x = graph.placeholder("x")
    node = graph.call_function(torch.sin, (x,))
    graph.node_copy(node)
    assert made[-2:] == [(x,), (x,)]
