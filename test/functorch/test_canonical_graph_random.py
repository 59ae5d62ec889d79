"""Random graphs: renamed and reordered ones have one key, and whatever has one key computes the same.

The graphs write to values and to views of them and draw random numbers, so that the order of their nodes often counts.
"""

from __future__ import annotations

import dataclasses
import operator
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch._functorch._aot_autograd.autograd_cache_parts import plain_bytes
from torch._functorch._aot_autograd.canonical_graph import CanonicalGraph


F = torch.nn.functional
Node = torch.fx.Node


@dataclasses.dataclass(frozen=True)
class Call:
    """One operator: how it is called of two values and a number, and whether it may be moved."""

    make: Callable[[torch.fx.Graph, Node, Node, float], Node]
    free: bool = True


def function(target: Any, *shape: str, free: bool = True, **kwargs: Any) -> Call:
    def make(graph: torch.fx.Graph, a: Node, b: Node, c: float) -> Node:
        return graph.call_function(target, tuple({"a": a, "b": b, "c": c}[s] for s in shape), kwargs)

    return Call(make, free)


def method(name: str, *shape: str, free: bool = True) -> Call:
    def make(graph: torch.fx.Graph, a: Node, b: Node, c: float) -> Node:
        return graph.call_method(name, tuple({"a": a, "b": b, "c": c}[s] for s in shape))

    return Call(make, free)


def setitem(graph: torch.fx.Graph, a: Node, b: Node, c: float) -> Node:
    graph.call_function(operator.setitem, (a, 0, c))
    return graph.call_function(torch.add, (a, b))


CALLS = (
    function(torch.sin, "a"),
    function(torch.sub, "a", "b"),
    function(torch.mul, "a", "c"),
    function(operator.add, "a", "b"),
    function(operator.mul, "a", "c"),
    function(F.relu, "a"),
    function(torch.maximum, "a", "b"),
    method("cos", "a"),
    method("clone", "a"),
    method("view_as", "a", "b"),
    method("detach", "a"),
    function(torch.ops.aten.mul.Tensor, "a", "b"),
    function(torch.ops.aten.alias.default, "a"),
    method("add_", "a", "c", free=False),
    method("mul_", "a", "b", free=False),
    function(operator.iadd, "a", "b", free=False),
    function(torch.relu_, "a", free=False),
    function(F.relu, "a", free=False, inplace=True),
    function(torch.ops.aten.add_.Tensor, "a", "b", free=False),
    function(torch.rand_like, "a", free=False),
    function(F.dropout, "a", free=False),
    Call(setitem, False),
)
steps = st.tuples(
    st.integers(0, len(CALLS) - 1), st.integers(0, 9), st.integers(0, 9), st.sampled_from([1.0, 2.0, -0.5])
)
programs = st.tuples(st.lists(steps, min_size=2, max_size=12), st.lists(st.integers(0, 9), min_size=1, max_size=3))


def build(program: Any, prefix: str = "v") -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    values = [graph.placeholder(f"{prefix}_x"), graph.placeholder(f"{prefix}_y")]
    for call, a, b, c in program[0]:
        values.append(CALLS[call].make(graph, values[-1 - a % len(values)], values[-1 - b % len(values)], c))
        values[-1]._rename(f"{prefix}{len(values)}")
    graph.output(tuple(values[-1 - k % len(values)] for k in program[1]))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def key(module: torch.fx.GraphModule) -> bytes:
    names = [(node, node.name) for node in module.graph.nodes]
    graph = CanonicalGraph(module, lambda value: repr(value).encode())
    assert names == [(node, node.name) for node in module.graph.nodes]
    return plain_bytes([graph.targets, graph.records])


def results(module: torch.fx.GraphModule) -> list[Any]:
    torch.manual_seed(0)
    inputs = [torch.linspace(-1, 1, 4), torch.linspace(0, 3, 4)]
    outputs = torch.fx.Interpreter(module).run(*inputs)
    values = [*outputs, *inputs]
    # Which of them are one tensor, or share memory, counts too.
    memory = [(id(v), v.untyped_storage().data_ptr()) for v in values]
    first = {number: place for place, pair in reversed(list(enumerate(memory))) for number in pair}
    return [*([v.tolist() for v in values]), [[first[number] for number in pair] for pair in memory]]


def is_free(node: Node) -> bool:
    return (
        node.op in ("call_function", "call_method")
        and any(call.free and _target(call) == (node.op, node.target) for call in CALLS)
        and "inplace" not in node.kwargs
    )


def _target(call: Call) -> Any:
    graph = torch.fx.Graph()
    node = call.make(graph, graph.placeholder("a"), graph.placeholder("b"), 1.0)
    return node.op, node.target


def shuffle(module: torch.fx.GraphModule, choose: random.Random, keep_order: bool) -> torch.fx.GraphModule:
    """The nodes in another order that respects data; and, if ``keep_order``, every write and every random number."""
    nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
    before: dict[Node, set[Node]] = {n: {o for o in n.all_input_nodes if o in nodes} for n in nodes}
    if keep_order:
        for k, node in enumerate(nodes):
            earlier = nodes[:k]
            before[node] |= {n for n in earlier if not (is_free(node) and is_free(n))}
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        copies[node] = graph.node_copy(node)
    left = list(nodes)
    while left:
        node = choose.choice([n for n in left if before[n].isdisjoint(left)])
        left.remove(node)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.node_copy(module.graph.output_node(), copies.__getitem__)
    return torch.fx.GraphModule(torch.nn.Module(), graph)


OPTIONS = settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck), derandomize=True)


@OPTIONS
@given(programs, st.randoms(use_true_random=False))
def test_renamed_and_reordered(program, choose):
    module = build(program)
    assert key(build(program, "other")) == key(module)
    other = shuffle(module, choose, keep_order=True)
    assert results(other) == results(module)
    assert key(other) == key(module)


@OPTIONS
@given(programs, st.randoms(use_true_random=False))
def test_one_key_one_result(program, choose):
    """Whatever the order, what has the same key computes the same."""
    module = build(program)
    other = shuffle(module, choose, keep_order=False)
    if key(other) == key(module):
        assert results(other) == results(module)


@OPTIONS
@given(programs, programs, st.data())
def test_one_edit(program, source, data):
    """A program with one thing changed has another key, or computes the same."""
    calls, outputs = program
    place = data.draw(st.integers(0, len(calls)))
    if place == len(calls):
        edited = (calls, source[1])
    else:
        field = data.draw(st.integers(0, 3))
        step = list(calls[place])
        step[field] = source[0][0][field]
        edited = ([*calls[:place], tuple(step), *calls[place + 1 :]], outputs)
    one, other = build(program), build(edited)
    if key(one) == key(other):
        assert results(one) == results(other)


@OPTIONS
@given(programs, st.integers(0, 11))
def test_a_number_counts(program, place):
    """A number that reaches a result is in the key."""
    calls, outputs = program
    assume(place < len(calls))
    call, a, b, c = calls[place]
    edited = ([*calls[:place], (call, a, b, c + 0.25), *calls[place + 1 :]], outputs)
    one, other = build(program), build(edited)
    if results(one) != results(other):
        assert key(one) != key(other)
