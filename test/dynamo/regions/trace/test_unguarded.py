"""What tracing reads of an object without a guard: layers whose objects differ there share no trace.

See Note [An object without sources is the same object].
"""

import collections
import datetime
import decimal
import enum
import math
import types

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.regions.trace.unguarded import unguarded_state
from torch._dynamo.utils import counters


pytestmark = pytest.mark.usefixtures("flag")
LAYERS, OTHER = 6, 4
X = torch.linspace(-1, 1, 8).view(2, 4)


@pytest.fixture
def flag():
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        yield


class Flags(enum.IntFlag):
    ONE = 1


class Slotted:
    __slots__ = ("scale",)


class SlottedModule(nn.Module):
    __slots__ = ("scale",)


class SlottedDict(dict):
    __slots__ = ("scale",)


class Rounded(float):
    """Dynamo takes it for a constant, and runs its methods."""

    def __floor__(self):
        return self.down

    def __format__(self, how):
        return "x" * self.down


class Schedule:
    def step(self):
        return 1.0


class Text(bytes):
    pass


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Tripled(Doubled):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def _with(made, **values):
    for name, value in values.items():
        setattr(made, name, value)
    return made


def _function(name):
    def identity(x):
        return x

    return _with(identity, __name__=name, __qualname__=name)


def _method(function):
    return types.MethodType(function, 2.0)


def _named(value):
    return 1.5


def _unnamed(value):
    return 1.5


_named.known = True
FIRST, SECOND = Schedule(), Schedule()


def _in_cell(kind):
    def asks(value):
        return isinstance(value, kind)

    return asks


def applies(held, x):
    return held(x)


def looks_up(held, x):
    return {"held": held}["held"](x)


def compares(threshold):
    return lambda held, x: x * 2 if held < threshold else x


def equals(known):
    return lambda held, x: x * 2 if held == known else x


def takes_slot(held, x):
    try:
        return x * held.scale
    except AttributeError:
        return x


def is_known(held, x):
    return x * 2 if getattr(held, "known", False) else x


def asks_class(held, x):
    return x * 2 if held(1.0) else x


def multiplies(held, x):
    return x * held(3.0)


def masks(held, x):
    return x * 2 if held & 8 else x


def spells(held, x):
    return x * len(held.__name__)


def spells_out(held, x):
    return held(x) * len(f"{held}".split()[1])


def formats_name(held, x):
    return held(x) * len("{.__name__}".format(held))  # noqa: UP032


def formats(held, x):
    return x * len(f"{held}")


def rounds_down(held, x):
    return x * math.floor(held)


# Name -> what a layer does, what all layers but one hold, and what that one holds.
CASES = {
    "a method of tensors": (applies, torch.Tensor.sin, torch.Tensor.exp),
    "a method of tensors in a dict": (looks_up, torch.Tensor.sin, torch.Tensor.exp),
    "a duration": (compares(datetime.timedelta(1)), datetime.timedelta(2), datetime.timedelta(0)),
    "a decimal": (compares(decimal.Decimal(1)), decimal.Decimal(2), decimal.Decimal(0)),
    "bytes that change": (equals(bytearray(b"a")), bytearray(b"a"), bytearray(b"b")),
    "bytes of a class": (equals(Text(b"a")), Text(b"a"), Text(b"b")),
    "a slot": (takes_slot, _with(Slotted()), _with(Slotted(), scale=3.0)),
    "an attribute of a method": (is_known, _method(_unnamed), _method(_named)),
    "a class in a cell": (asks_class, _in_cell(float), _in_cell(int)),
    "a method of a number": (multiplies, (1.5).__mul__, (1.5).__add__),
    "flags without a name": (masks, Flags(16), Flags(8)),
    "a member of a class": (spells, Slotted.scale, datetime.timedelta.days),
    "a slot of a module": (takes_slot, SlottedModule(), _with(SlottedModule(), scale=3.0)),
    "a slot of a dict": (takes_slot, SlottedDict(), _with(SlottedDict(), scale=3.0)),
    "what a cell holds": (compares(types.CellType(1.0)), types.CellType(2.0), types.CellType(0.0)),
    "a name in the text of a function": (spells_out, _function("a"), _function("bbb")),
    "a name that is formatted": (formats_name, _function("a"), _function("bbb")),
    "an attribute of a number": (rounds_down, _with(Rounded(1.5), down=1), _with(Rounded(1.5), down=3)),
    "the text of a number": (formats, _with(Rounded(1.5), down=1), _with(Rounded(1.5), down=3)),
    "a backward": (applies, Doubled.apply, Tripled.apply),
}

# Those of which no trace is shared: the dict is the call's own, what is compared hides something, and 2.15 refuses such bytes.
TRACED = ("a method of tensors in a dict", "what a cell holds", "bytes that change")


class Layer(nn.Module):
    def __init__(self, does, held):
        super().__init__()
        self.first, self.second, self.does, self.held = nn.Linear(4, 4), nn.Linear(4, 4), does, held

    def forward(self, x):
        return x + self.second(self.does(self.held, self.first(x)).tanh())


def _run(does, held, backend=None):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(does, each) for each in held))
    run = model if backend is None else torch.compile(model, backend=backend)
    result = run(X)
    result.sum().backward()
    return result.detach(), *(p.grad for p in model.parameters())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
def test_a_layer_that_holds_another_object_is_no_copy(name, backend):
    does, most, other = CASES[name]
    held = [other if k == OTHER else most for k in range(LAYERS)]
    wanted = _run(does, held)
    counters.clear()
    got = _run(does, held, backend)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)
    if name not in TRACED:
        assert counters["regions"]["reused"], "the layers that hold one object share its trace"


@pytest.mark.parametrize("name", [name for name in CASES if name not in TRACED])
def test_layers_that_hold_one_object_share_a_trace(name):
    does, most, _ = CASES[name]
    counters.clear()
    _run(does, [most] * LAYERS, "eager")
    assert counters["regions"]["reused"] >= LAYERS - 2


@pytest.mark.parametrize("name", CASES)
def test_the_state_of_each_object_tells_it_from_the_other(name):
    does, most, other = CASES[name]
    assert unguarded_state(most) == unguarded_state(most)
    # A source leads to what a function's cell holds.
    assert (unguarded_state(most) == unguarded_state(other)) is (name in ("a class in a cell", "what a cell holds"))


def test_methods_that_are_compared_are_those_of_each_layer():
    """Equal methods are bound to one object; Dynamo guards neither that nor the objects."""
    for known in (FIRST.step, SECOND.step):
        held = [SECOND.step if k == OTHER else FIRST.step for k in range(LAYERS)]
        wanted = _run(equals(known), held)
        torch.testing.assert_close(_run(equals(known), held, "eager"), wanted, rtol=0, atol=1e-6)


def test_constants_of_unusual_classes_are_compared_by_value():
    for one, other in (
        (slice(1, 2), slice(1, 2)),
        (torch.Size([1]), torch.Size([1])),
        (Text(b"a"), Text(b"a")),
        (Flags(8), Flags(8)),
        ([].append, [].append),
    ):
        alike = unguarded_state(one) == unguarded_state(other)
        assert alike is (type(one) is not types.BuiltinFunctionType), "a bound method of a list is that list's"


def test_parts_that_have_sources_may_be_other_objects():
    for make in (
        lambda: [1],
        lambda: collections.deque([1]),
        lambda: types.SimpleNamespace(a=1),
        lambda: types.MethodType(_named, 1.0),
        lambda: types.MappingProxyType({"a": 1}),
        lambda: _with(Slotted(), scale=1.0),
        lambda: torch.ones(1),
        Schedule,
        object,
    ):
        assert unguarded_state(make()) == unguarded_state(make())


def _scaled(by):
    def scale(x, scale=by):
        return x * scale

    return scale


def test_defaults_that_dynamo_does_not_guard_are_compared():
    held = [_scaled(2.0 if k == OTHER else 0.5) for k in range(LAYERS)]
    wanted = _run(applies, held)
    with torch._dynamo.config.patch(skip_guards_on_constant_func_defaults=True):
        torch.testing.assert_close(_run(applies, held, "eager"), wanted, rtol=0, atol=1e-6)
