"""Which operators cast a weight, and which share its cast: Note [A body keeps no casts].

That results and gradients are those of the flat graph is asserted in test_islands.py.
"""

import operator

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch._dynamo.regions.outline.casts import Casts, _casts_by_name, call_shares_cast, keeping_casts, shares_cast
from torch._subclasses import FakeTensorMode
from torch.fx.operator_facts import target_name


def _unknown(weight):
    raise NotImplementedError


@pytest.mark.parametrize(
    "target, casts",
    [
        (F.linear, Casts.ONCE),
        (torch.matmul, Casts.ONCE),
        (operator.matmul, Casts.ONCE),
        (torch.conv2d, Casts.ONCE),
        (torch.baddbmm, Casts.ONCE),
        (F.scaled_dot_product_attention, Casts.ONCE),
        (operator.mul, Casts.NEVER),
        (operator.iadd, Casts.NEVER),
        (F.layer_norm, Casts.NEVER),
        (F.embedding, Casts.NEVER),
        (torch.transpose, Casts.NEVER),
        # Composed of products of one operand with itself, and of operators that autocast intercepts.
        (torch.linalg.matrix_power, Casts.UNKNOWN),
        (F.bilinear, Casts.UNKNOWN),
        (F.multi_head_attention_forward, Casts.UNKNOWN),
        (_unknown, Casts.UNKNOWN),
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_how_often_an_operator_casts_an_operand(target, casts):
    node = torch.fx.Graph().call_function(target)
    assert _casts_by_name(target_name(node)) is casts


def test_what_casts_at_run_time_is_not_said_to_cast_never():
    weight, x = torch.randn(4, 4), torch.randn(4, 4)
    calls = {
        "linear": lambda: F.linear(x, weight),
        "mul": lambda: x * weight,
        "layer_norm": lambda: F.layer_norm(x, (4,), weight[0]),
        "embedding": lambda: F.embedding(torch.arange(3), weight),
        "softplus": lambda: F.softplus(weight),
        "cat": lambda: torch.cat([x, weight]),
        "prelu": lambda: F.prelu(x, weight[0]),
        "pow": lambda: weight**2,
        "sum": lambda: weight.sum(),
    }
    with torch.autocast("cpu", torch.bfloat16):
        cast = {name for name, call in calls.items() if call().dtype is not torch.float32}
    assert "linear" in cast
    assert not {name for name in cast if _casts_by_name(name) is Casts.NEVER}


class _Graph:
    """A graph of two weights and an activation, as Dynamo records them."""

    def __init__(self):
        self.graph = torch.fx.Graph()
        with FakeTensorMode():
            self.x = self._input("x", torch.empty(4, 4))
            self.v = self._input("v", torch.empty(4, 4, requires_grad=True))
            self.w = self._input("w", torch.empty(4, 4, requires_grad=True))

    def _input(self, name, value):
        node = self.graph.placeholder(name)
        node.meta["example_value"] = value
        return node

    def add(self, target, *operands):
        return self.graph.call_function(target, operands)


@torch.library.custom_op("torch_regions_casts::linear", mutates_args=())
def _linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(F.linear(x, weight), weight)


def _no_body(node):
    return None


def test_a_weight_that_one_operator_casts():
    g = _Graph()
    alone = g.add(F.linear, g.x, g.v)
    g.add(operator.mul, g.x, g.v)
    assert not shares_cast(alone, _no_body)


@pytest.mark.parametrize(
    "other",
    [
        lambda g: g.add(torch.mm, g.x, g.w),
        lambda g: g.add(torch.linalg.matrix_power, g.w, 2),
        lambda g: g.add(_unknown, g.w),
        lambda g: g.add(torch.ops.torch_regions_casts.linear.default, g.x, g.w),
        lambda g: g.graph.output((g.w,)),
    ],
    ids=["casts too", "composition", "unknown", "operator of the program", "returned"],
)
def test_a_weight_that_something_else_may_cast(other):
    g = _Graph()
    first = g.add(F.linear, g.x, g.w)
    other(g)
    assert shares_cast(first, _no_body)
    assert call_shares_cast(first, _no_body)


def test_a_weight_that_one_operator_reads_twice():
    g = _Graph()
    assert shares_cast(g.add(torch.ops.torch_regions_casts.linear.default, g.x, g.v), _no_body)
    assert shares_cast(g.add(torch.mm, g.w, g.w), _no_body)
    assert not shares_cast(g.add(torch.mm, g.x, g.x), _no_body)


def test_a_weight_that_a_checkpoint_reads():
    g, inside = _Graph(), _Graph()
    inside.add(F.linear, inside.x, inside.w)
    inside.graph.output((inside.add(operator.mul, inside.x, inside.v),))
    graphs = {"body": torch.fx.GraphModule({}, inside.graph)}
    tag = torch.ops.higher_order.tag_activation_checkpoint
    call = g.add(tag, g.graph.create_node("get_attr", "body"), g.x, g.v, g.w)
    assert not shares_cast(call, lambda node: graphs[node.target])
    again = graphs["body"].graph
    with again.inserting_before(again.output_node()):
        again.call_function(torch.mm, tuple(again.find_nodes(op="placeholder")[::2]))
    assert shares_cast(call, lambda node: graphs[node.target])
    assert shares_cast(call, _no_body)


def test_where_autocast_keeps_casts():
    g = _Graph()
    enter, leave = torch.amp._enter_autocast, torch.amp._exit_autocast
    outer = g.add(enter, "cpu", torch.bfloat16, True, True)
    kept = g.add(F.linear, g.x, g.w)
    inner = g.add(enter, "cpu", torch.bfloat16, True, False)
    not_kept = g.add(F.linear, g.x, g.w)
    g.add(leave, inner)
    again = g.add(F.linear, g.x, g.w)
    g.add(leave, outer)
    after = g.add(F.linear, g.x, g.w)
    found = keeping_casts(list(g.graph.nodes))
    position = {node: i for i, node in enumerate(g.graph.nodes)}
    assert [position[n] in found for n in (kept, not_kept, again, after)] == [True, False, True, False]
    assert found[position[again]] is outer
