"""Saving and looking up a call run no code of the program's own, whatever a layer holds."""

import collections
import enum
import pathlib
import sys
import types

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters


LAYERS = 5


class Key:
    """A key with an order of its own, and the hash of a number."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return hash(self.number)

    def __eq__(self, other):
        return type(other) is Key and other.number == self.number


class Mapping(dict):
    """A dict that answers by itself."""

    def __iter__(self):
        return dict.__iter__(self)

    def __getitem__(self, key):
        return dict.__getitem__(self, key)

    def __len__(self):
        return dict.__len__(self)


class Meta(type):
    """A class whose classes are hashed by code."""

    def __hash__(cls):
        return 5

    def __eq__(cls, other):
        return cls is other


class Classed(metaclass=Meta):
    """An instance may be a key."""


class Disguised:
    """An object that says what its class is."""

    def __init__(self):
        self.scale = 2.0

    @property
    def __class__(self):
        return Disguised


class Hidden:
    """An object that shows other attributes than it has."""

    scale = 2.0

    @property
    def __dict__(self):
        return {}

    def __bool__(self):
        return False


class Colour(enum.Enum):
    """Members are keys."""

    RED = 1
    BLUE = 2


def _lazy(name):
    if name != "made":
        raise AttributeError(name)
    return 2.0


LAZY = types.ModuleType("lazy")
LAZY.__getattr__ = _lazy
KEYS = [Key(0), Key(1)]
CLASSED = Classed()
CODES = {
    function.__code__
    for kind in (Key, Mapping, Meta)
    for name, function in vars(kind).items()
    if isinstance(function, types.FunctionType) and name != "__init__"
} | {
    _lazy.__code__,
    vars(Disguised)["__class__"].fget.__code__,
    vars(Hidden)["__dict__"].fget.__code__,
    Hidden.__bool__.__code__,
}

# What a layer holds, and what it reads of that; and whether the layers are stamped out all the same.
HELD = {
    "a number beside a key of its hash": (lambda n: {KEYS[1]: 1.0, 1: 2.0}, lambda held: held[1], True),
    "a key of the program": (lambda n: {KEYS[0]: 1.0, KEYS[1]: 2.0}, lambda held: held[KEYS[1]], True),
    "a name beside such keys": (lambda n: {KEYS[0]: 1.0, "s": 2.0}, lambda held: held["s"], True),
    "a member of an enum": (lambda n: {Colour.RED: 1.0, Colour.BLUE: 2.0}, lambda held: held[Colour.BLUE], True),
    "a pair of numbers": (lambda n: {(0, 1): 1.0, (1, 0): 2.0}, lambda held: held[1, 0], True),
    "whether a name is there": (lambda n: {KEYS[0]: 1.0, "s": 2.0}, lambda held: 2.0 if "s" in held else 3.0, True),
    "an ordered dict of such keys": (
        lambda n: collections.OrderedDict([(KEYS[0], 1.0), ("s", 2.0)]),
        lambda held: held["s"],
        False,
    ),
    "a proxy of the program's mapping": (
        lambda n: types.MappingProxyType(Mapping(s=2.0)),
        lambda held: held["s"],
        False,
    ),
    "a proxy of a dict": (lambda n: types.MappingProxyType({"s": 2.0}), lambda held: held["s"], True),
    "a key whose class is hashed by code": (lambda n: {CLASSED: 1.0, "s": 2.0}, lambda held: held["s"], True),
    "a lazy module": (lambda n: LAZY, lambda held: held.made, False),
    "an object that says its class": (
        lambda n: Disguised() if n > 2 else 2.0,
        lambda held: held if type(held) is float else held.scale,
        True,
    ),
    "an object with a dict of its own": (lambda n: Hidden(), lambda held: held.scale, False),
}


class Layer(nn.Module):
    def __init__(self, held, read):
        super().__init__()
        self.first, self.second, self.held, self.read = nn.Linear(4, 4), nn.Linear(4, 4), held, read

    def forward(self, x):
        return self.second(self.first(x).tanh() * self.read(self.held)).sin()


class Model(nn.Module):
    def __init__(self, mark, make, read):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(make(number), read) for number in range(LAYERS))
        self.region = torch.compiler.nested_compile_region(lambda layer, x: layer(x)) if mark else None

    def forward(self, x):
        for layer in self.layers:
            x = self.region(layer, x) if self.region is not None else layer(x)
        return x


def _run(mode, make, read):
    """Result, runs of the program's own code, and those of them that a file of ours has called."""
    torch._dynamo.reset()
    counters.clear()
    runs, ours = collections.Counter(), []
    model = Model(mode == "mark", make, read)

    def note(frame, event, argument):
        if event == "call" and frame.f_code in CODES:
            runs[frame.f_code.co_name] += 1
            if "regions" in pathlib.Path(frame.f_back.f_code.co_filename).parts:
                ours.append(f"{frame.f_code.co_name} by {frame.f_back.f_code.co_name}")

    before = sys.getprofile()
    with torch._dynamo.config.patch(use_graph_deduplication=mode == "flag"), torch.no_grad():
        sys.setprofile(note)
        try:
            result = torch.compile(model, backend="eager")(torch.ones(2, 4))
        finally:
            sys.setprofile(before)
    return result, runs, ours


@pytest.mark.parametrize("mode", ["flag", "mark"])
@pytest.mark.parametrize("held", HELD)
def test_no_more_code_of_the_program_runs_than_in_the_flat_program(held, mode):
    make, read, is_reused = HELD[held]
    flat, runs_flat, _ = _run("flat", make, read)
    result, runs, ours = _run(mode, make, read)
    torch.testing.assert_close(result, flat, rtol=0, atol=0)
    assert not ours
    assert runs <= runs_flat
    assert bool(counters["regions"]["reused"]) is is_reused
