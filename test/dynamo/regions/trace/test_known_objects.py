"""An object that the frame knows by another source, and of which it has read only the identity.

An earlier layer looked into an object of its own.  A layer that has the known object may not be stamped out of it: then
nothing would guard, at the known source, what the layer reads.
"""

from __future__ import annotations

import types

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.regions.outcomes import ReuseMissReason, outcomes


class Thing:
    def __init__(self, **values):
        self.__dict__.update(values)


def _default():
    return lambda x=1.0: x


# name -> (makes an object, a number that a layer reads of it, a change of the object)
KINDS = {
    "hasattr": (lambda: Thing(a=1.0), lambda t: 2.0 + hasattr(t, "z"), lambda t: setattr(t, "z", 1)),
    "attribute": (lambda: Thing(a=1.0), lambda t: t.a, lambda t: setattr(t, "a", 7.0)),
    "attribute with a default": (
        lambda: types.SimpleNamespace(a=1.0),
        lambda t: getattr(t, "z", 5.0),
        lambda t: setattr(t, "z", 1.0),
    ),
    "length of a dict": (lambda: {"a": 1.0}, lambda t: float(len(t)), lambda t: t.update(z=1.0)),
    "key of a dict": (lambda: {"a": 1.0}, lambda t: 2.0 + ("z" in t), lambda t: t.update(z=1.0)),
    "key of a dict with a default": (lambda: {"a": 1.0}, lambda t: t.get("z", 4.0), lambda t: t.update(z=1.0)),
    "element of a set": (lambda: {1, 2}, lambda t: 2.0 + (3 in t), lambda t: t.add(3)),
    "length of a list": (lambda: [1.0], lambda t: float(len(t)), lambda t: t.append(2.0)),
    "default of a function": (_default, lambda t: t(), lambda t: setattr(t, "__defaults__", (6.0,))),
    "attribute of a module": (nn.ReLU, lambda t: 2.0 + t.inplace, lambda t: setattr(t, "inplace", True)),
}
KNOWN = READ = None


class Layer(nn.Module):
    def __init__(self, thing):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.__dict__["thing"] = thing

    def forward(self, x):
        return self.linear(self.linear(x).sin()).cos() * READ(self.thing) + x


class Net(nn.Module):
    def __init__(self, things):
        super().__init__()
        self.layers = nn.ModuleList(map(Layer, things))

    def forward(self, x):
        if KNOWN is None:
            return x
        for layer in self.layers:
            x = layer(x)
        return x


def _run(kind: str, own: tuple[bool, ...], flag: bool):
    """Results before and after the change, in eager and compiled, and the number of compiles."""
    global KNOWN, READ
    make, READ, change = KINDS[kind]
    KNOWN = make()
    net, x = Net([make() if each else KNOWN for each in own]), torch.ones(2, 3)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    found = []
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        compiled = torch.compile(net, backend="eager")
        for _ in range(2):
            found.append((net(x), compiled(x)))
            change(KNOWN)
    return found, torch._dynamo.utils.counters["frames"]["ok"]


@pytest.mark.parametrize("own", [(True, False, False), (False, True, False), (True, True, False)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_layer_reads_of_a_known_object_is_guarded(kind, own):
    _, flat = _run(kind, own, False)
    found, compiles = _run(kind, own, True)
    for eager, compiled in found:
        assert torch.equal(eager, compiled)
    assert compiles == flat


def test_the_call_is_traced_and_later_ones_reuse_it():
    _run("length of a dict", (True, True, False, False, False), True)
    calls = outcomes()
    assert [call.miss for call in calls].count(ReuseMissReason.READ_BY_FRAME) == 1
    assert [call.outcome.name for call in calls].count("REUSED") == 4  # the last two layers, in each of two frames
