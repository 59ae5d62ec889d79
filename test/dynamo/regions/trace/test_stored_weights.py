"""Note [A weight that the frame has stored is an argument]: functional_call, and frames that store weights by themselves."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.regions.facts import facts
from torch._dynamo.utils import counters
from torch.func import functional_call


LAYERS = 6
MODES = ["flag", "mark"]


class Layer(nn.Module):
    """``fn``: (layer, x) -> x."""

    def __init__(self, fn):
        super().__init__()
        self.first, self.second, self.fn = nn.Linear(4, 4), nn.Linear(4, 4), fn
        self.register_buffer("scale", torch.full((4,), 0.5))
        self.unused = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return x + self.fn(self, self.second(self.first(x).tanh()))


class Stack(nn.Module):
    def __init__(self, mode, fn):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(fn) for _ in range(LAYERS))
        self.mark = mode == "mark"
        self.region = torch.compiler.nested_compile_region(lambda layer, x: layer(x))
        for layer in self.layers:
            layer.__dict__["peers"] = self.layers  # no submodule

    def forward(self, x):
        for layer in self.layers:
            x = self.region(layer, x) if self.mark else layer(x)
        return x


def plain(layer, x):
    return x * layer.scale


def outcome(mode, program, fn=plain, calls=1):
    """What calls of ``program(stack, x)`` give and leave behind, and how many layers were stamped out."""
    torch._dynamo.reset()
    counters.clear()
    stack = Stack(mode, fn)
    compiled = torch.compile(program, backend="eager", fullgraph=True) if mode != "eager" else program
    x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
    found = []
    for number in range(calls):
        out = compiled(stack, x * (number + 1))
        out.pow(2).sum().backward()
        found.append(out.detach())
    gradients = [x.grad, *(p.grad for p in stack.parameters())]
    names = [list(module._parameters) + list(module._buffers) for module in stack.modules()]
    left = [b.detach().clone() for b in stack.buffers()]
    return (found, gradients, left, names), counters["regions"]["reused"]


def check(program, reused, fn=plain, calls=1):
    expected, _ = outcome("eager", program, fn, calls)
    for verify in (False, True):
        for mode in MODES:
            with torch._dynamo.config.patch(use_graph_deduplication=mode == "flag", verify_region_reuse=verify):
                found, stamped = outcome(mode, program, fn, calls)
            torch.testing.assert_close(found[:3], expected[:3])
            assert found[3] == expected[3]
            if not verify:
                assert stamped == reused, mode


def stored(stack, change=lambda name, value: value * 1.5, of=lambda name: True):
    return {name: change(name, value) for name, value in stack.named_parameters() if of(name)}


def test_layers_with_weights_of_the_frame_are_one_body():
    check(lambda stack, x: functional_call(stack, stored(stack), (x,)), reused=LAYERS - 1)


def test_what_the_frame_has_put_back_is_the_layers_own():
    def program(stack, x):
        return stack(functional_call(stack, stored(stack), (x,)))

    check(program, reused=2 * (LAYERS - 1), calls=2)


def test_buffers_count_as_weights():
    def program(stack, x):
        return functional_call(stack, {n: b * 2 for n, b in stack.named_buffers()}, (x,))

    check(program, reused=LAYERS - 1)


def test_layers_of_which_only_some_have_stored_weights():
    def program(stack, x):
        return functional_call(stack, stored(stack, of=lambda name: int(name.split(".")[1]) < 3), (x,))

    check(program, reused=2 + 2)


@pytest.mark.parametrize(
    ("change", "reused"),
    [
        pytest.param(lambda v: v.detach() * 1.5, LAYERS - 2, id="no gradient"),
        pytest.param(lambda v: v.t() * 1.5, LAYERS - 2, id="other strides"),
        pytest.param(lambda v: v[:1].expand(4, 4), LAYERS - 2, id="expanded"),
        pytest.param(lambda v: v.double().float(), LAYERS - 1, id="like the others"),
    ],
)
def test_a_weight_that_differs_is_another_body(change, reused):
    def program(stack, x):
        other = stored(stack, lambda n, v: change(v) if n.startswith("layers.3.") and v.dim() == 2 else v * 1.5)
        return functional_call(stack, other, (x,))

    check(program, reused=reused)


def test_two_names_of_one_stored_tensor():
    def program(stack, x):
        values = stored(stack)
        for number in (2, 3, 4):
            values[f"layers.{number}.second.weight"] = values[f"layers.{number}.first.weight"]
        return functional_call(stack, values, (x,))

    def fn(layer, x):
        return x * (2.0 if layer.first.weight is layer.second.weight else 3.0)

    check(program, reused=2 + 2, fn=fn)


def test_a_stored_tensor_that_two_layers_share():
    def program(stack, x):
        values = stored(stack)
        for number in range(LAYERS):
            values[f"layers.{number}.second.weight"] = values["layers.0.first.weight"]
        return functional_call(stack, values, (x,))

    check(program, reused=LAYERS - 2)


def test_parameters_of_the_next_layer():
    def program(stack, x):
        own = dict(stack.named_parameters())
        values = {
            f"layers.{number}.{name}": own[f"layers.{(number + 1) % LAYERS}.{name}"]
            for number in range(LAYERS)
            for name in ("first.weight", "first.bias", "second.weight")
        }
        return functional_call(stack, values, (x,))

    check(program, reused=0)


def test_the_order_of_the_names():
    def program(stack, x):
        for number, layer in enumerate(stack.layers):
            held = layer.first._parameters
            weight = held["weight"]
            if number == 3:
                del held["weight"]
            held["weight"] = weight * 1.0
        return stack(x)

    def fn(layer, x):
        return sum(x * (place + 1) for place, name in enumerate(layer.first._parameters) if name == "bias")

    def restored(stack, x):
        kept = [(layer.first._parameters, dict(layer.first._parameters)) for layer in stack.layers]
        out = program(stack, x)
        for held, own in kept:
            held.clear()
            held.update(own)
        return out

    check(restored, reused=LAYERS - 2, fn=fn)


def test_layers_that_read_the_stored_weights_of_the_first():
    def fn(layer, x):
        return x * layer.peers[0].first.weight.sum()

    check(lambda stack, x: functional_call(stack, stored(stack), (x,)), reused=0, fn=fn)


def test_layers_that_store_in_what_the_frame_has_changed():
    def fn(layer, x):
        layer.scale = layer.scale + 1.0
        return x * layer.scale

    def program(stack, x):
        for layer in stack.layers:
            layer.scale = layer.scale * 2.0
        return stack(x)

    check(program, reused=0, fn=fn, calls=2)


def test_a_value_that_is_no_tensor():
    def program(stack, x):
        for number, layer in enumerate(stack.layers):
            layer.first._parameters["extra"] = number
        out = stack(x)
        for layer in stack.layers:
            del layer.first._parameters["extra"]
        return out

    check(program, reused=0, fn=lambda layer, x: x * layer.first._parameters["extra"])


def test_attributes_that_the_frame_gives_a_weight():
    def program(stack, x):
        for number, layer in enumerate(stack.layers):
            layer.second.weight.number = number
        return functional_call(stack, stored(stack, of=lambda name: "first" in name or "bias" in name), (x,))

    def fn(layer, x):
        return x * layer.second.weight.number

    check(program, reused=0, fn=fn)


def test_a_dict_of_three_names_is_taken_for_no_tensor():
    """What a miss is said to be tells tensors by the shape of their key."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(x).relu() * 2

    def program(model, x):
        stored = {f"{i}.norm.running_var": model[i].norm.running_var * 2 for i in (0, 1)}
        return functional_call(model, stored, (x,))

    model, x = nn.Sequential(*(Normed() for _ in range(4))).eval(), torch.randn(3, 4)
    for mode in MODES:
        torch._dynamo.reset()
        for layer in model if mode == "mark" else ():
            layer.forward = torch.compiler.nested_compile_region(layer.forward)
        with torch._dynamo.config.patch(use_graph_deduplication=mode == "flag", verify_region_reuse=True):
            found = torch.compile(program, backend="eager", fullgraph=True)(model, x)
        torch.testing.assert_close(found, program(model, x))
        assert facts()[-1].in_order()[2].miss_detail == "weights that the frame has stored differ"


def test_weights_that_change_after_the_compile():
    """A second call finds what the program has put in one layer since."""

    def program(stack, x):
        return functional_call(stack, stored(stack, of=lambda name: "first" in name), (x,))

    for mode in MODES:
        torch._dynamo.reset()
        with torch._dynamo.config.patch(use_graph_deduplication=mode == "flag"):
            stack, x = Stack(mode, plain), torch.ones(2, 4)
            compiled = torch.compile(program, backend="eager", fullgraph=True)
            compiled(stack, x)
            for edit in (
                lambda: stack.layers[3].second.register_parameter("weight", nn.Parameter(torch.eye(4))),
                lambda: stack.layers[4].first.register_parameter("bias", None),
                lambda: setattr(stack.layers[2], "scale", torch.ones(1, 4)),
                lambda: setattr(stack.layers[5], "first", stack.layers[0].first),
            ):
                edit()
                torch.testing.assert_close(compiled(stack, x), program(stack, x))
