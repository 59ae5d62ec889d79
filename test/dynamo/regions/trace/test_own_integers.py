"""Layers with integers of their own behind an argument, which move: a cache's count of what it has seen."""

import pytest
import torch
import torch._dynamo
from testing.own_lengths import guards_on_sizes
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters


LAYERS = 5
X = torch.linspace(-1, 1, 8).view(2, 4)


class Held:
    """What one layer holds in the cache."""

    def __init__(self, number, k):
        self.number, self.limit = number, 9
        self.kept = torch.linspace(k, 1, number * 4).view(number, 4)


class Layer(nn.Module):
    def __init__(self, kind, k):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.read, self.k = getattr(self, kind), k

    def forward(self, x, cache):
        return x + self.second(self.read(self.first(x).tanh(), cache[self.k])).sin()

    def is_an_operand(self, x, held):
        return x * held.number

    def counts(self, x, held):
        held.number = held.number + x.size(0)
        return x + 1

    def counts_down(self, x, held):
        held.number, held.limit = -held.number, held.number * 2 - held.limit
        return x * 2

    def counts_what_it_kept(self, x, held):
        held.number += held.kept.size(0) * 2
        return x + held.kept.sum(0)

    def counts_and_takes_both(self, x, held):
        before = held.number
        held.number += 3
        return x * before + torch.ones(held.number, 4).sum(0)

    def begins_at_it(self, x, held):
        return x + torch.arange(held.number, held.number + 4)

    def is_a_size(self, x, held):
        return x + torch.ones(held.number + 1, 4).sum(0)

    def is_asked_for(self, x, held):
        return x * 2 if held.number > 4 else x * 3

    def is_compared_with_a_size(self, x, held):
        return x * 2 if held.number == held.kept.size(0) else x * 3

    def is_where_a_slice_begins(self, x, held):
        return x + held.kept[held.number - 2 :].sum(0)

    def is_where_a_slice_ends(self, x, held):
        return torch.softmax(x @ held.kept[: held.number - 1].t(), -1) @ held.kept[: held.number - 1]

    def is_a_number_of_steps(self, x, held):
        for _ in range(held.number):
            x = x.sin()
        return x

    def is_made_a_float(self, x, held):
        return x / float(held.number)

    def is_only_kept(self, x, held):
        held.limit = held.number
        return x + 2


KINDS = [name for name in vars(Layer) if name not in ("__init__", "forward") and not name.startswith("__")]
# Kinds that Dynamo compiles for one number.
SPECIALIZED = {"is_a_number_of_steps"}


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(kind, k) for k in range(LAYERS))

    def forward(self, x, cache):
        for layer in self.layers:
            x = layer(x, cache)
        return x


def _cache(number):
    return [Held(number, k) for k in range(LAYERS)]


def _run(program, cache):
    return program(X, cache), [(held.number, held.limit) for held in cache]


def _compiled(kind, on, backend="eager"):
    """A model that was compiled for two numbers, so that they are symbols now; and the counter of its compiles."""
    counters.clear()
    torch._dynamo.reset()
    model = Model(kind)
    counter = CompileCounterWithBackend(backend)
    program = torch.compile(model, backend=counter)
    with torch._dynamo.config.patch(use_graph_deduplication=on):
        for number in (6, 7):
            counters.clear()
            torch.testing.assert_close(_run(program, _cache(number)), _run(model, _cache(number)))
    return model, program, counter


@pytest.mark.parametrize("kind", KINDS)
def test_layers_with_integers_of_their_own_are_reused(kind):
    _compiled(kind, True, "aot_eager")
    assert counters["regions"]["reused"] == LAYERS - 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_reuse_is_what_tracing_makes(kind):
    with torch._dynamo.config.patch(verify_region_reuse=True):
        _compiled(kind, True)
    assert counters["regions"]["verified"]


@pytest.mark.parametrize("kind", KINDS)
def test_guards_are_those_of_flat(kind):
    found = []
    for on in (True, False):
        with guards_on_sizes() as guards:
            _compiled(kind, on)
        found.append(guards)
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_another_number_of_one_layer_compiles_as_often_as_flat(kind):
    seen = []
    for on in (True, False):
        model, program, counter = _compiled(kind, on)
        with torch._dynamo.config.patch(use_graph_deduplication=on):
            for number in (8, 3):
                cache = _cache(7)
                cache[LAYERS - 1].number = number
                result = _run(program, cache)
                cache = _cache(7)
                cache[LAYERS - 1].number = number
                torch.testing.assert_close(result, _run(model, cache))
                seen.append(counter.frame_count)
    assert seen[:2] == seen[2:]
