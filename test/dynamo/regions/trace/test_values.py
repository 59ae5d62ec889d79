"""Kinds of values that a call may not read and be reused, where the call finds one without looking up its source."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.comptime import comptime
from torch._dynamo.decorators import mark_unbacked
from torch.fx.experimental import symbolic_shapes


SEEN = []


def _forward():
    run = comptime

    def forward(self, x):
        y = self.b(self.a(x).tanh())
        run(lambda ctx: SEEN.append(ctx))
        return x + y

    return forward


@pytest.mark.parametrize("mark", [True, False], ids=["mark", "flag"])
def test_what_runs_while_dynamo_traces_is_found_in_a_cell(mark):
    """The first call read the cell. Later calls took its value as the frame had it, of whatever kind."""

    class Layer(nn.Module):
        forward = torch.compiler.nested_compile_region(_forward()) if mark else _forward()

        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    SEEN.clear()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=not mark):
        torch.compile(nn.Sequential(*(Layer() for _ in range(4))), backend="eager")(torch.ones(2, 4))
    assert len(SEEN) == 4


def _call(layer, x):
    return layer(x)


def _sized(how):
    def example():
        x = torch.linspace(-1, 1, 32).view(8, 4)
        how(x, 0)
        return x

    return example


ASK = [
    symbolic_shapes.guard_or_false,
    symbolic_shapes.guard_or_true,
    symbolic_shapes.statically_known_true,
    symbolic_shapes.statically_known_false,
]


@pytest.mark.parametrize("how", [torch._dynamo.mark_dynamic, mark_unbacked], ids=["backed", "unbacked"])
@pytest.mark.parametrize("where", ["a global", "the layer"])
@pytest.mark.parametrize("ask", ASK, ids=lambda ask: ask.__name__)
@pytest.mark.parametrize("mark", [True, False], ids=["mark", "flag"])
def test_what_is_known_of_a_size_is_asked_anew_in_each_call(mark, ask, where, how):
    """The frame learns of a size between two calls. No guard says what a layer found to be known of it before."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.ask = nn.Linear(4, 4), nn.Linear(4, 4), ask

        def forward(self, x):
            known = ask(x.size(0) > 5) if where == "a global" else self.ask(x.size(0) > 5)
            return self.b(self.a(x).tanh()).sin() * (2 if known else 3)

    class Model(nn.Module):
        def __init__(self, call):
            super().__init__()
            torch.manual_seed(0)
            self.layers, self.call = nn.ModuleList(Layer() for _ in range(5)), call

        def forward(self, x):
            for number, layer in enumerate(self.layers):
                if number == 3:
                    torch._check(x.size(0) > 5)
                x = self.call(layer, x)
            return x

    def result(call, flag):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(use_graph_deduplication=flag), torch.no_grad():
            return torch.compile(Model(call), backend="eager")(_sized(how)())

    region = torch.compiler.nested_compile_region(_call)
    torch.testing.assert_close(result(region if mark else _call, not mark), result(_call, False), rtol=0, atol=0)
