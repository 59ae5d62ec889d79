"""Layers that share an object of some kind, which the program also reads by a name of its own."""

import pytest
import torch
import torch._dynamo
from testing.cases import some
from testing.shared_objects import KINDS
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters


X = torch.randn(2, 3)
NAMED = {}


class Layer(nn.Module):
    """Reads what it holds, and what the program names besides, as ``how`` says."""

    def __init__(self, held, use, how):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.inner = nn.Sequential(nn.Linear(3, 3))
        self.held, self.use, self.how = held, use, how

    def forward(self, x):
        x = self.use(self.held, self.inner(self.linear(x)).sin())
        if self.how == "also read by a name":
            return self.use(NAMED["it"], x)
        if self.how == "compared with a name":
            return x * 2 if self.held is NAMED["it"] else x + 7
        return x


class Model(nn.Module):
    def __init__(self, layers, mark):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        if mark:
            for layer in self.layers:
                layer.forward = torch.compiler.nested_compile_region(layer.forward)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _model(kind, how, which, mark):
    """Six layers, which hold the objects with the numbers ``which``."""
    make, use = KINDS[kind]
    objects = {i: make(float(2 + i)) for i in set(which) | {1}}
    NAMED["it"] = objects[which[0]]
    torch.manual_seed(0)
    return Model([Layer(objects[i], use, how) for i in which], mark), objects


# Layers that are given another object, one at a time.
CHANGED = (4, 2)
CALL = torch._dynamo.config.patch


def _steps(model, objects):
    """Two calls with nothing changed, and one with each change, which is undone again."""
    yield from range(2)
    for layer in CHANGED:
        held = model.layers[layer].held
        model.layers[layer].held = objects[1]
        yield layer
        model.layers[layer].held = held


def _run(kind, how, which, *, flag, mark, verify=False):
    torch._dynamo.reset()
    model, objects = _model(kind, how, which, mark)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    with CALL(use_graph_deduplication=flag, verify_region_reuse=verify):
        seen = [(compiled(X), counter.frame_count) for _ in _steps(model, objects)]
    model, objects = _model(kind, how, which, False)
    right = [model(X) for _ in _steps(model, objects)]
    return [(torch.equal(a, b), frames) for (a, frames), b in zip(seen, right)]


READS = ["read", "also read by a name", "compared with a name"]
ALIKE = [(kind, how) for kind in KINDS for how in READS]
IN_TURN = [(kind, how) for kind in KINDS for how in READS[::2]]
# By default, of four kinds in a row three are read in one way each in the one test, and two in the other.


@pytest.mark.parametrize(("kind", "how"), some(ALIKE, ALIKE[::4]))
def test_a_shared_object_is_tied_as_flat_ties_it(kind, how):
    """It was stale where the object was known by a name of its own, or was of a kind that Dynamo does not track."""
    flat = _run(kind, how, [0] * 6, flag=False, mark=False)
    for flag, mark in ((True, False), (False, True)):
        assert _run(kind, how, [0] * 6, flag=flag, mark=mark) == flat, (flag, mark)
    assert _run(kind, how, [0] * 6, flag=True, mark=False, verify=True) == flat


@pytest.mark.parametrize(("kind", "how"), some(IN_TURN, [*IN_TURN[3::8], *IN_TURN[6::8]]))
def test_objects_in_turn_are_told_apart(kind, how):
    """Objects without a ``__dict__`` were taken for one another."""
    flat = _run(kind, how, [0, 1, 0, 1, 0, 0], flag=False, mark=False)
    for flag, mark in ((True, False), (False, True)):
        assert _run(kind, how, [0, 1, 0, 1, 0, 0], flag=flag, mark=mark) == flat


def _scaled(by):
    return lambda x: x.tanh() * by


def _counted(seen):
    def counts(x):
        nonlocal seen
        seen += 1.0
        return x.tanh() * seen

    return lambda x: x.sin() * seen, counts


def _of_two(by):
    return lambda x: x.tanh() * by, lambda x: x.sin() * by


class Closed(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        if how == "the same function":
            self.act = self.after = _scaled(2.0)
        elif how == "another function with the cell":
            self.act, self.after = _of_two(2.0)
        elif how == "a function that writes to the cell":
            self.act, self.after = _counted(2.0)
        else:
            self.act = torch.tanh
            self.after = self.linear
            scale = _scaled(2.0)
            self.linear.register_forward_hook(lambda module, args, out: scale(out))

    def forward(self, x):
        return x + self.act(self.linear(x)).sin()


class Twice(nn.Module):
    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Closed(how) for _ in range(5))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        for layer in self.layers:
            x = x + layer.after(x)
        return x


HOW = ["the same function", "another function with the cell", "a function that writes to the cell", "a hook"]


@pytest.mark.parametrize("how", HOW)
def test_a_cell_that_a_reused_call_read_is_a_cell_to_the_frame(how):
    """It was built as any other object. Calling the function after the layers raised an AssertionError."""
    frames = []
    for flag in (False, True):
        torch._dynamo.reset()
        counters.clear()
        counter = CompileCounter()
        model, eager = Twice(how), Twice(how)
        with torch._dynamo.config.patch(use_graph_deduplication=flag):
            compiled = torch.compile(model, backend=counter, fullgraph=True)
            torch.testing.assert_close(compiled(X), eager(X), rtol=0, atol=0)
            for each in (model, eager) if how != "a hook" else ():
                each.layers[3].act.__closure__[0].cell_contents = 5.0
            torch.testing.assert_close(compiled(X), eager(X), rtol=0, atol=0)
        frames.append(counter.frame_count)
    assert counters["regions"]["reused"]
    assert frames[0] == frames[1]
