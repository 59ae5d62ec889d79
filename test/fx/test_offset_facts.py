"""Which operators see where their operands begin in their storages."""

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.offset_facts import seeing_offsets, sees_offset


ATEN = torch.ops.aten


def node_of(target, *args, **kwargs):
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.ones(4, 4)
    make = graph.call_method if isinstance(target, str) else graph.call_function
    return make(target, (x, *args), kwargs)


@pytest.mark.parametrize(
    "target, args",
    [
        (torch.as_strided, ((2,), (1,), 1)),
        ("as_strided", ((2,), (1,))),
        ("as_strided_", ((2,), (1,))),
        (ATEN.as_strided.default, ((2,), (1,), 1)),
        (ATEN.as_strided_scatter.default, ()),
        ("view", (torch.int64,)),
        (ATEN.view.dtype, (torch.int64,)),
        (torch.view_as_complex, ()),
        ("set_", ()),
        ("resize_", ((2,),)),
        (print, ()),  # anything may happen in it
    ],
)
def test_seers(target, args):
    assert sees_offset(node_of(target, *args))


def test_view_with_a_dtype_by_keyword():
    assert sees_offset(node_of("view", dtype=torch.int64))


@pytest.mark.parametrize(
    "target, args",
    [
        (operator.add, (1,)),
        (operator.getitem, (0,)),
        (torch.sin, ()),
        (F.linear, (torch.ones(4, 4),)),
        (F.layer_norm, ((4,),)),
        (F.scaled_dot_product_attention, ()),
        (F.dropout, ()),
        (torch.einsum, ()),
        (torch.cat, ()),
        (torch.view_as_real, ()),
        ("view", (2, 8)),
        ("view", ((2, 8),)),
        ("reshape", (16,)),
        ("chunk", (2,)),
        ("unfold", (0, 2, 1)),
        ("copy_", ()),
        (ATEN.mm.default, ()),
        (ATEN.diagonal.default, ()),
    ],
)
def test_others(target, args):
    assert not sees_offset(node_of(target, *args))


def test_operator_of_the_user():
    with torch.library._scoped_library("offset_facts", "FRAGMENT") as library:
        library.define("plus(Tensor x) -> Tensor")
        assert sees_offset(node_of(torch.ops.offset_facts.plus.default))


def test_operator_that_runs_a_body_that_sees():
    def outer_of(body):
        graph = fx.Graph()
        x, inner = graph.placeholder("x"), graph.get_attr("inner")
        x.meta["example_value"] = torch.ones(4, 4)
        node = graph.call_function(torch.ops.higher_order.tag_activation_checkpoint, (inner, x))
        return node, {"inner": fx.symbolic_trace(body)}

    node, modules = outer_of(lambda x: x.sin().as_strided((2,), (1,), 1))
    assert not sees_offset(node) and seeing_offsets([node], modules) == [node]
    node, modules = outer_of(lambda x: x.sin().view(16))
    assert seeing_offsets([node], modules) == []
    assert seeing_offsets([node], {}) == [node]  # what it runs is not known
