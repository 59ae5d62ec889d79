"""Numbers behind an argument that differ between layers, and of which a layer asks what they have in common."""

import operator

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.regions.trace.expressions import Applied, SourceValue
from torch._dynamo.source import AttrSource, LocalSource
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters


LAYERS = 5
X = torch.linspace(-1, 1, 8).view(2, 4)


def drop_path(layer, x):
    return x.sin() if layer.rate == 0.0 or not layer.training else x.sin() * (1 - layer.rate)


def every_second(layer, x):
    return x.sin() if (layer.number + 2) % 2 == 0 else x.cos()


def quotient(layer, x):
    return x.view(layer.size // layer.number, -1).sin().view_as(x)


class Layer(nn.Module):
    def __init__(self, fn, number):
        super().__init__()
        self.first, self.second, self.fn = nn.Linear(4, 4), nn.Linear(4, 4), fn
        self.number, self.rate, self.size = number + 1, number / 10, 4 * (number + 1)

    def forward(self, x):
        return x + self.second(self.fn(self, self.first(x).tanh()))


class Model(nn.Module):
    def __init__(self, fn):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(fn, number) for number in range(LAYERS))

    def forward(self, x):
        x = x.cos()
        for layer in self.layers:
            x = layer(x)
        return x


def outcome(flag, fn, *changes, training=False):
    """Results and compiles of a call after each change, and how many calls the first compile reused."""
    torch._dynamo.reset()
    counters.clear()
    model, counter = Model(fn).train(training), CompileCounterWithBackend("eager")
    found = []
    with torch._dynamo.config.patch(use_graph_deduplication=flag), torch.no_grad():
        program = torch.compile(model, backend=counter)
        reused = None
        for change in (lambda model: None, *changes):
            change(model)
            result = program(X)
            torch.testing.assert_close(result, model(X), rtol=0, atol=0)
            found.append((result.tolist(), counter.frame_count))
            reused = counters["regions"]["reused"] if reused is None else reused
    return found, reused


def to(name, value, number=2):
    return lambda model: setattr(model.layers[number], name, value)


CASES = {
    # The first has no rate, so the second is traced as well.
    "a rate that matters in training only": (drop_path, 3, [to("rate", 0.75), to("rate", 0.0), to("rate", 2)]),
    # Layers 2 and 3 are the first of their kinds.
    "every second layer": (every_second, 3, [to("number", 5), to("number", 4), to("number", 2.0)]),
    "a quotient": (quotient, 4, [to("size", 24), to("number", 6), to("number", 5)]),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_of_which_a_function_is_alike_are_shared_and_guarded_one_by_one(case):
    fn, reused, changes = CASES[case]
    found, shared = outcome(True, fn, *changes)
    assert shared == reused
    assert found == outcome(False, fn, *changes)[0]


def test_a_rate_that_the_layer_multiplies_with_is_its_own():
    found, shared = outcome(True, drop_path, to("rate", 0.0), training=True)
    assert shared == 0
    assert found == outcome(False, drop_path, to("rate", 0.0), training=True)[0]


def test_an_expression_that_differs_is_named_by_its_function_and_sources():
    """Its text was that of Python's objects."""
    rate = SourceValue(AttrSource(LocalSource("layer"), "rate"))
    assert str(Applied(operator.sub, (1, rate))) == "sub(1, L['layer'].rate)"
