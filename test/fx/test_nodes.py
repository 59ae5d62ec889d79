"""Nodes are made and changed as by stock, also where ours takes a shorter way."""

import operator
import warnings

import pytest
import torch
import torch._dynamo
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torch_regions.overlay import stock


def _symbol():
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode.from_tensor(torch.empty(5, 7), static_shapes=False).shape[0]


def _made(make, args, kwargs=None, name=None):
    """A graph with one call that ``make`` has made, and the warnings that it gave."""
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    places = {"x": x, "y": y}
    args = torch.fx.node.map_aggregate(args, lambda a: places.get(a, a) if isinstance(a, str) else a)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        node = make(graph, "call_function", torch.add, args, kwargs, name)
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


@pytest.mark.parametrize("case", CASES)
def test_a_node_is_the_one_that_stock_makes(case):
    args, kwargs = CASES[case]
    (ours, node, warned), (theirs, other, warned_too) = (
        _made(make, args, kwargs) for make in (Graph.create_node, stock("torch.fx.graph:Graph.create_node"))
    )
    assert str(ours) == str(theirs)
    assert (node.name, repr(node.args), repr(node.kwargs)) == (other.name, repr(other.args), repr(other.kwargs))
    assert type(node.args) is type(other.args) and type(node.kwargs) is type(other.kwargs)
    assert [len(p.users) for p in ours.nodes] == [len(p.users) for p in theirs.nodes]
    assert list(map(str, node.all_input_nodes)) == list(map(str, other.all_input_nodes))
    assert warned == warned_too


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: [s], lambda s: (1, [s])])
def test_a_symbolic_number_is_warned_of(wrap):
    _, _, warned = _made(Graph.create_node, ("x", wrap(_symbol())))
    assert len(warned) == 1 and "Raw SymInt" in warned[0]


def test_arguments_that_are_no_tuple_are_refused():
    with pytest.raises(AssertionError, match="args must be a tuple"):
        Graph().create_node("call_function", torch.add, [1])


def test_a_hook_sees_the_arguments():
    graph = Graph()
    module, seen = GraphModule(torch.nn.Module(), graph), []
    module._register_create_node_hook(lambda node: seen.append(node.args))
    x = module.graph.placeholder("x")
    module.graph.call_function(torch.sin, (x,))
    assert seen[-1] == (x,)


def test_nodes_are_found_by_what_they_are_now():
    graph = Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.sin, (x,))
    node.meta = {"val": 1}
    node._repr_fn = lambda n: "n"
    node.target = torch.cos
    assert graph.find_nodes(op="call_function", target=torch.cos) == [node]
    assert graph.find_nodes(op="call_function", target=torch.sin) == []
    node.args = (node.args[0],)
    assert list(x.users) == [node]
    graph.erase_node(node)
    assert graph.find_nodes(op="call_function", target=torch.cos) == []


def test_a_new_name_is_told_to_who_asked():
    module = GraphModule(torch.nn.Module(), Graph())
    x = module.graph.placeholder("x")
    node = module.graph.call_function(operator.neg, (x,))
    told = []
    module._register_replace_node_hook(lambda old, new, user: told.append((new, user)))
    x.name = "renamed"
    assert told == [("renamed", node)]


def test_a_subclass_may_have_attributes_of_its_own():
    assert Node.__setattr__ is not object.__setattr__
    node = Graph().placeholder("x")
    node.my_own = 3
    assert node.my_own == 3
