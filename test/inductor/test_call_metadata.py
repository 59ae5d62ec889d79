"""What Inductor looks up and compares of each operand of each call, in fewer steps, is what stock finds."""

from __future__ import annotations

import itertools
import operator
from unittest.mock import patch

import pytest
import torch
import torch._inductor.ir as ir
from testing.kernels import fresh_graphs
from torch._inductor import fx_utils
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.immutable_collections import immutable_list

from torch_regions.overlay import stock


# What is called directly is the overlay's while a program with regions is compiled.
pytestmark = pytest.mark.usefixtures("with_regions")


def _node(*args, **kwargs):
    graph = Graph()
    values = {}
    with FakeTensorMode():
        for name in "ab":
            node = values[name] = graph.placeholder(name)
            node.meta["val"] = torch.empty(2, 3)
    values["unknown"] = graph.placeholder("unknown")
    values["body"] = graph.get_attr("body")

    def named(value):
        return torch.fx.node.map_aggregate(value, lambda v: values.get(v, v) if isinstance(v, str) else v)

    return graph.call_function(operator.getitem, named(args), named(kwargs))


@pytest.mark.parametrize(
    "node",
    [
        _node("a", 3, None, "other", torch.float32),
        _node(("a", ("b", 2)), ["a", 1.5, ["b"]]),
        _node("a", "unknown"),
        _node("body", "body", "a", "b"),
        _node("a", slice(0, 2), {"key": "a"}),
        _node("a", other="b"),
        _node(),
    ],
    ids=lambda node: repr(node.args),
)
def test_what_operands_stand_for_is_what_stock_finds(node):
    gm = torch.nn.Module()
    gm.body = GraphModule({}, Graph())
    found, expected = (f(node, gm) for f in (fx_utils.get_fake_args_kwargs, stock(NAME)))
    assert found[0] is expected[0]

    def flat(values):
        return torch.utils._pytree.tree_flatten(values)

    (one, form), (other, expected_form) = flat(found[1:]), flat(expected[1:])
    assert form == expected_form and all(a is b for a, b in zip(one, other, strict=True))
    assert [type(a) for a in found[1]] == [type(a) for a in expected[1]]
    assert not any(type(a) is list for a in found[1]) or immutable_list not in map(type, expected[1])


NAME = "torch._inductor.fx_utils:get_fake_args_kwargs"


@pytest.mark.parametrize("symbols", [False, True])
def test_operands_of_a_call_are_compared_as_stock_compares_them(symbols):
    mode = FakeTensorMode(shape_env=ShapeEnv())
    real = [torch.empty(2, 3), torch.empty(3, 2), torch.empty(3, 2).t(), torch.empty(2, 3, dtype=torch.int64)]
    with mode:
        fakes = [mode.from_tensor(t, static_shapes=not symbols) for t in real] if symbols else []
        fakes += [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in real]
        fakes += [torch.empty(2, 3, device="meta" if mode.allow_meta else "cpu"), torch.empty(2, 4)[:, :3]]
    by_stock = stock("torch._inductor.fx_utils:_is_fake_tensor_same")
    with ir.V.set_fake_mode(mode):
        for one, other in itertools.product(fakes, repeat=2):
            for what in ({"check_strides": strides, "check_storage": False} for strides in (False, True)):
                found = fx_utils._is_fake_tensor_same(one, other, {}, **what)
                assert found == by_stock(one, other, {}, **what)


@torch.compiler.nested_compile_region
def _layer(x, w):
    y = torch.tanh(x @ w)
    return y.cos() @ w, y.view(2, 8), (y * 2).split(2, dim=-1)[1]


def _layers(x, w):
    for _ in range(3):
        x, seen, half = _layer(x, w)
        x = x + seen.view(4, 4) * half.sum()
    return x


def _compile_layers(train):
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, w = (torch.randn(4, 4, dtype=torch.float64, requires_grad=train) for _ in range(2))
    with fresh_graphs(), torch._functorch.config.patch(enable_autograd_cache=False):
        result = torch.compile(_layers, fullgraph=True)(x, w)
        torch.testing.assert_close(result, _layers(x, w))
        if train:
            result.sum().backward()


@pytest.mark.parametrize("train", [False, True])
def test_what_a_call_writes_is_what_stock_finds(train):
    ours = ir.MultiOutput.get_read_writes
    by_stock = stock("torch._inductor.ir:MultiOutput.get_read_writes")
    results = []

    def compared(output):
        found, expected = ours(output), by_stock(output)
        assert found == expected
        if isinstance(output.inputs[0], ir.InvokeSubgraph):
            results.append(output.get_name())
        return found

    with patch.object(ir.MultiOutput, "get_read_writes", compared):
        _compile_layers(train)
    assert len(results) >= 6 and len(set(results)) > 3


@pytest.mark.parametrize("train", [False, True])
def test_calls_of_an_unchanged_body_are_not_run_again(train):
    update = fx_utils.FakeTensorUpdater.incremental_update
    again = []

    def counted(updater):
        def vals():
            calls = updater.gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
            return [id(call.meta["val"]) for call in calls]

        before = vals()
        changed = update(updater)
        again.append(before != vals())
        return changed

    with patch.object(fx_utils.FakeTensorUpdater, "incremental_update", counted):
        _compile_layers(train)
    assert again and not any(again)


@pytest.mark.row("torch._inductor.fx_utils:get_fake_args_kwargs")
def test_one_result_of_a_call_is_looked_for_in_no_tree():
    graph = Graph()
    call, (one, other) = graph.placeholder("call"), torch.empty(2, 4)
    call.meta["val"] = [one, other]
    for place in (1, -1, slice(0, 1)):
        node = graph.call_function(operator.getitem, (call, place))
        valid, args, kwargs = fx_utils.get_fake_args_kwargs(node)
        assert valid and not kwargs
        assert operator.getitem(*args) is other if place != slice(0, 1) else operator.getitem(*args) == [one]
        assert len(torch.utils._pytree.tree_leaves(args)) == (2 if place != slice(0, 1) else 3)
