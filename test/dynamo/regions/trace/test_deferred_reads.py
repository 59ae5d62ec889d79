"""Calls whose deferred values are of another kind, or read in another way, than those of the call before."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters


LAYERS = 5
MODES = ["flag", "mark"]
X = torch.linspace(-1, 1, 8).view(2, 4)


class Layer(nn.Module):
    """``fn``: (layer, x, what the frame passes) -> number."""

    def __init__(self, fn, number):
        super().__init__()
        self.first, self.second, self.fn, self.number = nn.Linear(4, 4), nn.Linear(4, 4), fn, number

    def forward(self, x, given):
        return x + self.second(self.first(x).tanh() * self.fn(self, x, given)).sin()


class Model(nn.Module):
    """``before``: (model, number, x) -> what the frame passes to a layer."""

    def __init__(self, mode, fn, before):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(fn, number) for number in range(LAYERS))
        self.before = before
        self.region = torch.compiler.nested_compile_region(lambda layer, x, given: layer(x, given))
        self.mark = mode == "mark"

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            given = self.before(self, number, x)
            x = self.region(layer, x, given) if self.mark else layer(x, given)
        return x


def outcome(mode, fn, before, setup=lambda model: None, changes=(), state=lambda model: None, example=lambda: X):
    """Results, compiles and state of a call after each change; and the number of calls that were stamped out."""
    torch._dynamo.reset()
    counters.clear()
    model = Model(mode, fn, before)
    setup(model)
    counter = CompileCounterWithBackend("eager")
    found = []
    with torch._dynamo.config.patch(use_graph_deduplication=mode == "flag"), torch.no_grad():
        program = torch.compile(model, backend=counter)
        for change in (lambda model: None, *changes):
            change(model)
            found.append((program(example()).tolist(), counter.frame_count, state(model)))
    return found, counters["regions"]["reused"]


def _holds(model):
    model.table = {number: 1.0 + number for number in range(LAYERS)}


NAMES = {
    "an element, or whether it is there": ["get", "get", "__contains__", "get", "get"],
    "an element, or its removal": ["get", "get", "get", "pop", "get"],
    "always an element": ["get"] * LAYERS,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("names", NAMES)
def test_a_method_that_is_named_by_an_argument_is_the_one_of_that_name(names, mode):
    """The name was taken for ``get`` in each call that followed one in which it was ``get``."""

    def read(layer, x, given):
        table, name = given
        return float(getattr(table, name)(layer.number))

    args = read, lambda model, number, x: (model.table, NAMES[names][number]), _holds
    kept = {"state": lambda model: [*model.table]}
    assert outcome(mode, *args, **kept)[0] == outcome("flat", *args, **kept)[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_method_that_is_not_there_is_the_default(mode):
    def read(layer, x, given):
        table, name = given
        method = getattr(table, name, None)
        return 9.0 if method is None else method(layer.number)

    args = read, lambda model, number, x: (model.table, "get" if number != 3 else "got"), _holds
    assert outcome(mode, *args)[0] == outcome("flat", *args)[0]


class User:
    """An object with an order of its own."""

    def __init__(self):
        self.asked = []

    def __lt__(self, other):
        self.asked.append(other)
        return True


class Number(int):
    """A number with an order of its own."""

    asked: list = []

    def __lt__(self, other):
        self.asked.append(other)
        return True


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [User, lambda: Number(1)], ids=["object", "number"])
def test_the_programs_own_order_is_asked_for_by_the_program_alone(kind, mode):
    """An integer that is compared with a constant was an object with ``__lt__`` in another call, which the lookup ran."""

    def is_small(layer, x, given):
        return 2.0 if layer.number < 4 else 3.0

    def setup(model):
        for layer in model.layers:
            layer.number = 1
        model.layers[1].number = model.user = kind()
        model.user.asked.clear()

    args = is_small, lambda model, number, x: None, setup
    state = {"state": lambda model: len(model.user.asked)}
    assert outcome(mode, *args, **state)[0] == outcome("flat", *args, **state)[0]


class Settings:
    """What one layer holds."""

    def __init__(self):
        self.number, self.scale = 2, 2.0


@pytest.mark.parametrize("mode", MODES)
def test_an_integer_that_moves_is_a_symbol_also_behind_an_object_that_the_frame_reads(mode):
    """The frame knows the object by another source: the integer was not built there, and became a constant."""

    def compares(layer, x, given):
        return 2.0 if given[layer.number].number < 4 else 3.0

    def before(model, number, x):
        if number == 3:
            model.seen = model.alias.scale
        return model.settings

    def setup(model):
        model.settings = [Settings() for _ in range(LAYERS)]
        model.alias = model.settings[3]

    def to(number):
        return lambda model: setattr(model.alias, "number", number)

    args = compares, before, setup, [to(3), to(-5), to(-6), to(7)]
    found, reused = outcome(mode, *args)
    assert reused and found == outcome("flat", *args)[0]
