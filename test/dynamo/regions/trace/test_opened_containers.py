"""Elements of a container that was opened before a region's call are read without a look at their sources."""

import collections
import types

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters


class Thing:
    pass


class OwnList(list):
    pass


class OwnDict(dict):
    pass


class OwnTuple(tuple):
    pass


Pair = collections.namedtuple("Pair", "first second")
ONE, TWO, THREE = Thing(), Thing(), Thing()

CONTAINERS = {
    "list": lambda thing: [thing, None],
    "tuple": lambda thing: (thing, None),
    "dict": lambda thing: {0: thing},
    "list of lists": lambda thing: [[thing]],
    "dict of tuples": lambda thing: {0: (thing, 1)},
    "own list": lambda thing: OwnList([thing]),
    "own list of own dicts": lambda thing: OwnList([OwnDict({0: thing})]),
    "own dict": lambda thing: OwnDict({0: thing}),
    "own tuple of lists": lambda thing: OwnTuple(([thing],)),
    "named tuple": lambda thing: Pair([thing], None),
    "ordered dict": lambda thing: collections.OrderedDict({0: [thing]}),
    "defaultdict": lambda thing: collections.defaultdict(list, {0: [thing]}),
    "deque": lambda thing: collections.deque([[thing]]),
    "mapping proxy": lambda thing: types.MappingProxyType({0: [thing]}),
    "UserDict": lambda thing: collections.UserDict({0: [thing]}),
}


def _innermost(found):
    while not isinstance(found, Thing):
        found = found[0]
    return found


class Layer(torch.nn.Module):
    def __init__(self, made):
        super().__init__()
        self.linear, self.made = torch.nn.Linear(3, 3), made

    def forward(self, x):
        # The name comes first: Dynamo knows the object by it, and makes no guard that the container holds it too.
        return self.linear(x).sin().cos() + (1.0 if ONE is _innermost(self.made) else 2.0)


class Model(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(make(thing)) for thing in (ONE, TWO, THREE))

    def forward(self, x):
        layers = list(self.layers)
        for k in (0, 1, 0, 2, 0):
            x = layers[k](x)
        return x


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("name", CONTAINERS)
def test_an_element_is_compared_that_nobody_asked_a_source_for(name, marked, verify, monkeypatch):
    if marked:
        monkeypatch.setattr(Layer, "forward", torch.compiler.nested_compile_region(Layer.forward))
    torch._dynamo.reset()
    counters.clear()
    model, x = Model(CONTAINERS[name]), torch.randn(2, 3)
    with torch._dynamo.config.patch(use_graph_deduplication=not marked, verify_region_reuse=verify):
        got = torch.compile(model, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(got, model(x))
    assert counters["regions"]["reused"] >= 1 or verify
