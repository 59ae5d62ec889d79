"""Which operators may be in a region: by target, by random numbers, by what they write."""

import operator

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from testing.automatic_cases import X, compare
from torch._dynamo.utils import counters
from torch.fx.operator_facts import (
    OperatorClass,
    draws_random_numbers,
    is_switch,
    operator_class,
    takes_gradients,
    written_operands,
)


def _node(target, *args, **kwargs):
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    place = {"x": x, "y": y}
    args = tuple(place.get(a, a) if isinstance(a, str) else a for a in args)
    kwargs = {k: place.get(v, v) if isinstance(v, str) else v for k, v in kwargs.items()}
    kind = "call_method" if isinstance(target, str) else "call_function"
    return graph.create_node(kind, target, args, kwargs)


@pytest.mark.parametrize(
    "node",
    [
        _node(torch.sin, "x"),
        _node("sin", "x"),
        _node(operator.add, "x", 1),
        _node(F.layer_norm, "x", (4,)),
        _node(torch._C._nn.linear, "x", "y"),
        _node(getattr, "x", "T"),
        _node("float", "x"),
        _node(torch.ops.aten.sin.default, "x"),
        _node("__add__", "x", 1),
        _node(torch.einsum, "ij->i", "x"),
        _node(torch.Size, ["x", 4]),
    ],
)
def test_torchs_tensor_operators_are_pure(node):
    assert operator_class(node) is OperatorClass.PURE


@pytest.mark.parametrize(
    "node",
    [
        _node(print, "x"),
        _node(getattr, "x", "grad"),
        _node("register_hook", "x", print),
        _node("requires_grad_", "x"),
        _node("set_", "x", "y"),
        _node("backward", "x"),
        _node(torch._C._set_grad_enabled, False),
        _node(torch.amp.autocast_mode._enter_autocast, "cpu", None, True, None),
        _node(lambda x: x, "x"),
        _node("no_such_method", "x"),
        _node(torch.manual_seed, 0),
    ],
)
def test_anything_else_is_opaque_and_counts_as_writing_its_operands(node):
    assert operator_class(node) is OperatorClass.OPAQUE
    assert written_operands(node) == list(node.all_input_nodes)


def test_higher_order_operators_only_read():
    node = _node(torch.ops.higher_order.cond, "x", None, None, ("y",))
    assert operator_class(node) is OperatorClass.READER
    assert written_operands(node) == []


@pytest.mark.parametrize(
    "node, random",
    [
        (_node(F.dropout, "x", 0.5, True), True),
        (_node(F.dropout, "x"), True),
        (_node(F.dropout, "x", 0.5, False), False),
        (_node(F.dropout, "x", p=0.0), False),
        (_node(F.dropout, "x", "y", True), True),
        (_node("bernoulli_", "x"), True),
        (_node("normal_", "x"), True),
        (_node(torch.rand_like, "x"), True),
        (_node(torch.ops.aten.rand.default, (4,)), True),
        (_node(F.gumbel_softmax, "x"), True),
        (_node(F.rrelu, "x", 0.1, 0.3, True), True),
        (_node(F.scaled_dot_product_attention, "x", "x", "x"), False),
        (_node(F.scaled_dot_product_attention, "x", "x", "x", None, 0.1), True),
        (_node(F.scaled_dot_product_attention, "x", "x", "x", dropout_p=0.0), False),
        (_node(torch.sin, "x"), False),
        (_node(torch.empty, 4), False),
    ],
)
def test_random_operators_are_known(node, random):
    assert draws_random_numbers(node) is random


def test_every_random_operator_of_torch_is_known_by_the_name_of_its_function():
    for name in dir(torch._C._VariableFunctions):
        packet = getattr(torch.ops.aten, name, None)
        if isinstance(packet, torch._ops.OpOverloadPacket) and any(
            torch.Tag.nondeterministic_seeded in getattr(packet, o).tags for o in packet.overloads()
        ):
            function = getattr(torch._C._VariableFunctions, name)
            assert draws_random_numbers(_node(function, "x", "x", "x", None, 0.5)), name


@pytest.mark.parametrize(
    "node, written",
    [
        (_node("add_", "x", "y"), "x"),
        (_node(operator.setitem, "x", 0, "y"), "x"),
        (_node(operator.iadd, "x", "y"), "x"),
        (_node("__iadd__", "x", "y"), "x"),
        (_node(torch.add, "x", 1, out="y"), "y"),
        (_node(F.relu, "x", inplace=True), "x"),
        (_node(torch.ops.aten.add_.Tensor, "x", "y"), "x"),
        (_node(torch.ops.aten.add.out, "x", "x", out="y"), "y"),
        (_node(F.batch_norm, None, "x", "y", None, None, True), "xy"),
        (_node(F.batch_norm, None, "x", "y", None, None, False), ""),
        (_node(F.instance_norm, None, "x", "y"), "xy"),
        (_node(F.embedding, "x", "y", max_norm=1.0), "y"),
        (_node(F.embedding, "x", "y"), ""),
        (_node(torch.add, "x", "y"), ""),
        (_node("__add__", "x", "y"), ""),
    ],
)
def test_what_is_written_is_known(node, written):
    assert [n.name for n in written_operands(node)] == list(written)


def test_gradient_takers_are_known():
    assert takes_gradients(_node(torch.autograd.grad, "x", "y"))
    assert not takes_gradients(_node(torch.sin, "x"))


@pytest.mark.parametrize(
    "node",
    [
        _node(torch.amp.autocast_mode._enter_autocast, "cpu", None, True, None),
        _node(torch.amp.autocast_mode._exit_autocast, "x"),
        _node(torch._C._set_grad_enabled, False),
        _node(torch.nn.attention._sdpa_kernel, ["x"], False),
        _node(torch.nn.attention._backend_from_string, "MATH"),
    ],
)
def test_switches_of_global_state(node):
    assert is_switch(node)
    assert not is_switch(_node(torch.sin, "x")) and not is_switch(_node("sin", "x"))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x, m):
        return self.b(self.a(x).tanh()).sin() + m + m.view(-1).view(2, 4).clone()


class InferenceInside(Layer):
    def forward(self, x, m):
        with torch.inference_mode():
            scale = self.b(self.a(x).tanh())
        return self.b(self.a(x).tanh()) + scale.clone() + m


class OfInferenceTensors(torch.nn.Module):
    """Layers numbered ``which`` are given what the frame has made in inference mode."""

    def __init__(self, kind, which):
        super().__init__()
        self.layers, self.which = torch.nn.ModuleList(kind() for _ in range(4)), which

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            m = x.detach().cos()
            if number in self.which:
                with torch.inference_mode():
                    m = x.sin() * number
            x = layer(x, m)
        return x


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("kind", "which"),
    [(Layer, (0,)), (Layer, (2,)), (Layer, (1, 3)), (Layer, range(4)), (InferenceInside, ())],
    ids=str,
)
def test_a_body_takes_no_tensor_of_inference_mode(kind, which, training):
    compare(lambda: OfInferenceTensors(kind, which), X, backend="aot_eager", training=training)
    assert counters["regions"]["reused"]
