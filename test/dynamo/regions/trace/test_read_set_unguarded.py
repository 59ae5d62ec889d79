"""What Dynamo reads of an object without a guard that says so is not taken over by another call."""

import functools

import pytest
import torch
import torch._dynamo
from testing.deferred_programs import Plain
from torch import nn
from torch._dynamo.utils import counters


X = torch.linspace(0.1, 1.0, 4)


def _by_cell(k):
    @torch._dynamo.assume_constant_result
    def number():
        return k

    return number


def _by_default(k):
    @torch._dynamo.assume_constant_result
    def number(of=k):
        return of

    return number


def _by_attribute(k):
    @torch._dynamo.assume_constant_result
    def number():
        return number.k

    number.k = k
    return number


def _annotated(k):
    def scaled(x):
        return x * 2

    scaled.__annotations__ = {"x": k}
    return scaled


def _named(k):
    def scaled(x):
        return x * 2

    scaled.__name__ = "scaled" * k
    return scaled


def _cached(k):
    return functools.lru_cache(_named(k))


class WithText:
    def __init__(self, k):
        self.k = k

    def __repr__(self):
        return "k" * self.k

    def scale(self, x):
        return x * self.k


class Listed(list):
    pass


class Plainest:
    def __init__(self, k):
        self.k = k


@torch._dynamo.assume_constant_result
def _largest(tensor):
    return int(tensor.max())


# name -> how a layer's value is made of a number, and how the layer uses it
PROGRAMS = {
    "constant of a cell": (_by_cell, lambda v, x: x * v()),
    "constant of a default": (_by_default, lambda v, x: x * v()),
    "constant of an attribute": (_by_attribute, lambda v, x: x * v()),
    "constant of a tensor": (lambda k: torch.full((4,), float(k)), lambda v, x: x * _largest(v)),
    "annotations": (_annotated, lambda v, x: x * v.__annotations__["x"]),
    "name of a cached function": (_cached, lambda v, x: x * len(v.__name__)),
    "text by repr": (WithText, lambda v, x: x * len(str(v))),
    "text of a method": (lambda k: WithText(k).scale, lambda v, x: x * len(str(v))),
    "text of a list subclass": (lambda k: Listed([0] * k), lambda v, x: x * len(str(v))),
}

# Dynamo of 2.15 raises Unsupported for the text of a method, flat as well.
NAMES = [name for name in PROGRAMS if name != "text of a method" or not torch.__version__.startswith("2.15")]


def _loop(make, use):
    layers = [Plain(value=make(k)) for k in (2, 3, 2, 3)]

    def build(mark):
        run = mark(lambda layer, x: use(layer.value, x.sin()))

        def program(x):
            for layer in layers:
                x = run(layer, x)
            return x

        return program

    return build


@pytest.mark.parametrize("name", NAMES)
def test_as_without_a_mark(name):
    build = _loop(*PROGRAMS[name])
    got = torch.compile(build(torch.compiler.nested_compile_region), backend="eager", fullgraph=True)(X)
    torch.testing.assert_close(got, build(lambda body: body)(X))


@pytest.mark.parametrize("name", NAMES)
def test_as_without_the_flag(name):
    make, use = PROGRAMS[name]

    class Layer(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.value = make(k)

        def forward(self, x):
            return use(self.value, self.linear(x))

    model = nn.Sequential(*map(Layer, (2, 3, 2, 3))).requires_grad_(False)
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        got = torch.compile(model, backend="eager", fullgraph=True)(X)
    torch.testing.assert_close(got, model(X))


@pytest.mark.parametrize("as_text", [str, repr])
@pytest.mark.parametrize("make", [Plainest, _named, lambda k: [Plainest(k)]], ids=["object", "function", "list"])
def test_the_address_of_an_object_is_no_constant_of_another(make, as_text):
    values = [make(k) for k in (2, 3, 2, 3)]
    table = {as_text(value): 2 + n for n, value in enumerate(values)}
    layers = [Plain(value=value) for value in values]

    def build(mark):
        run = mark(lambda layer, x: x.sin() * table[as_text(layer.value)])
        return lambda x: functools.reduce(lambda x, layer: run(layer, x), layers, x)

    got = torch.compile(build(torch.compiler.nested_compile_region), backend="eager")(X)
    torch.testing.assert_close(got, build(lambda body: body)(X))


SHARED, ANNOTATED = _by_default(2), _annotated(2)


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (lambda k: SHARED, lambda v, x: x * v()),
        (lambda k: ANNOTATED, lambda v, x: x * v.__annotations__["x"]),
        (lambda k: functools.lru_cache(_named(2)), lambda v, x: x * len(v.__name__)),
        (lambda k: WithText(2), lambda v, x: x * len(repr(v))),
        (lambda k: 2, lambda v, x: x * len(str(v))),
    ],
    ids=["one constant", "one function's annotations", "one name", "a text that is traced", "the text of a number"],
)
def test_what_is_the_same_is_reused(make, use):
    build = _loop(make, use)
    torch.compile(build(torch.compiler.nested_compile_region), backend="eager", fullgraph=True)(X)
    assert counters["regions"]["reused"] == 3


def test_the_dtype_of_autocast_is_read_while_it_is_off():
    run = torch.compiler.nested_compile_region(
        lambda x: x.sin() * (2 if torch.get_autocast_dtype("cpu") == torch.float16 else 3)
    )

    def program(x):
        x = run(x)
        torch.set_autocast_dtype("cpu", torch.float16)
        x = run(x)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        return run(x)

    got = torch.compile(program, backend="eager", fullgraph=True)(X)
    torch.testing.assert_close(got, ((X.sin() * 3).sin() * 2).sin() * 3)
    assert counters["regions"]["reused"] == 1
