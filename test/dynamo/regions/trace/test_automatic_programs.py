"""What blocks do that are regions by themselves: results, effects, state, breaks, repeats inside; nothing else changes."""

import dataclasses
import functools
import random

import pytest
import torch
import torch._dynamo
from testing.automatic_cases import Block, Odd, Stack, Switched, X, blocks, check, names, outcomes_of, twice
from torch._dynamo.regions.outcomes import Outcome, ReuseMissReason, outcomes
from torch._dynamo.utils import counters


nn = torch.nn


class Direct(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(blocks())

    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        return x


def test_forward_called_directly():
    check(Direct, X)


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    extra: object = None


class Returns(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.__dict__["_make"] = make

    def forward(self, x):
        return self._make(self.norm(self.linear(x)).relu())


def _dict(h):
    return {"hidden": h, "twice": h * 2}


def _tuple(h):
    return h, None


def _list(h):
    return [h, 1, "a"]


def _output(h):
    return Output(h, (h.cos(), None))


class Unpacks(nn.Module):
    def __init__(self, make, get):
        super().__init__()
        self.layers = nn.ModuleList(Returns(make) for _ in range(4))
        self.__dict__["_get"] = get

    def forward(self, x):
        results = []
        for layer in self.layers:
            result = layer(x)
            x = self._get(result)
            results.append(result)
        return x, results[-1], len(results)


@pytest.mark.parametrize(
    ("make", "get"),
    [
        (_dict, lambda r: r["hidden"]),
        (_tuple, lambda r: r[0]),
        (_list, lambda r: r[0]),
        (_output, lambda r: r.hidden),
    ],
    ids=["dict", "tuple", "list", "dataclass"],
)
def test_what_blocks_return(make, get):
    check(lambda: Unpacks(make, get), X)


class Writes(nn.Module):
    """Returns nothing: stores what it computes, and counts."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.last = None
        self.calls = 0

    def forward(self, x, store):
        self.last = self.norm(self.linear(x)).relu()
        self.calls += 1
        store.append(self.last)


class Stores(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Writes() for _ in range(4))

    def forward(self, x):
        store = []
        for layer in self.layers:
            layer(x, store)
            x = x + layer.last
        return x, store


def test_side_effects_of_blocks():
    check(Stores, X, fullgraph=False)


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return x + self.norm(self.linear(x)).relu()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("train", [True, False])
def test_running_statistics(backend, train):
    check(lambda: Stack([Norms() for _ in range(4)]).train(train), X, backend=backend)


class Drops(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 16), nn.Linear(16, 4), nn.LayerNorm(4)

    def forward(self, x):
        h = nn.functional.dropout(self.first(self.norm(x)).sin().cos().tanh(), 0.3, self.training)
        return x + self.second(h).sin().cos().tanh()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_dropout_draws_what_it_draws_flat(backend):
    check(lambda: Stack([Drops() for _ in range(4)]), X, backend=backend)
    assert names("Drops") == ["TRACED", "REUSED", "REUSED", "REUSED"]


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.input, self.hidden = nn.Linear(4, 12), nn.Linear(4, 12)

    def forward(self, x, h):
        a, b, c = (self.input(x) + self.hidden(h)).chunk(3, -1)
        return torch.sigmoid(a) * h + torch.tanh(b) * torch.sigmoid(c)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell()

    def forward(self, x):
        h = torch.zeros(2, 4)
        for _ in range(10):
            h = self.cell(x, h)
        return h


def test_an_unrolled_recurrent_cell():
    check(Recurrent, X)
    assert sum(o.outcome is Outcome.REUSED for o in outcomes_of("Cell")) >= 7


class Raises(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.limit = limit

    def forward(self, x):
        h = self.norm(self.linear(x))
        if self.limit > 2:
            raise ValueError("too deep")
        return h


class Catches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Raises(k) for k in range(6))

    def forward(self, x):
        caught = 0
        for layer in self.layers:
            try:
                x = layer(x)
            except ValueError:
                caught += 1
        return x, caught


def test_blocks_that_raise():
    check(Catches, X)


class Breaks(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.k = k

    def forward(self, x):
        h = self.norm(self.linear(x))
        if self.k == 2:
            torch._dynamo.graph_break()
        return h.relu() + x


def test_a_graph_break_in_one_block():
    check(lambda: Stack([Breaks(k) for k in range(6)]), X, fullgraph=False)


def test_a_graph_break_in_every_block():
    check(lambda: Stack([Breaks(2) for k in range(4)]), X, fullgraph=False)


def test_a_graph_break_between_blocks():
    class Between(Stack):
        def forward(self, x):
            for layer in self.layers[:4]:
                x = layer(x)
            torch._dynamo.graph_break()
            for layer in self.layers[4:]:
                x = layer(x)
            return x

    check(lambda: Between(blocks(8)), X, fullgraph=False)
    assert sum(o.outcome is Outcome.REUSED for o in outcomes_of("Block")) >= 6


CHANGES = {
    "attribute": lambda m: setattr(m.layers[2], "scale", 3.0),
    "training flag": lambda m: m.layers[2].eval(),
    "hook": lambda m: m.layers[2].register_forward_hook(lambda m, i, o: o + 1),
    "submodule": lambda m: setattr(m.layers[2], "norm", nn.Identity()),
    "parameter": lambda m: setattr(m.layers[2].linear, "weight", nn.Parameter(torch.ones(4, 4))),
    "no bias": lambda m: setattr(m.layers[2].linear, "bias", None),
    "swapped": lambda m: m.layers.insert(0, m.layers.pop(2)),
    "one more": lambda m: m.layers.append(Block(4)),
    "forward": lambda m: setattr(m.layers[2], "forward", functools.partial(twice, m.layers[2])),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_between_calls_is_seen_as_flat_sees_it(what):
    seen = []
    for flag in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, frames = Stack(blocks()), torch._dynamo.testing.CompileCounter()
        with torch._dynamo.config.patch(use_graph_deduplication=flag):
            compiled = torch.compile(model, backend=frames)
            results = [compiled(X)]
            torch.manual_seed(1)
            CHANGES[what](model)
            results += [compiled(X), compiled(X)]
        seen.append((results, frames.frame_count))
        # Dynamo does not look at hooks that come later, unless it is told to.
        if what != "hook":
            torch.testing.assert_close(results[-1], model(X))
    torch.testing.assert_close(seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]


def test_blocks_that_are_called_in_a_block():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(blocks(4))

        def forward(self, x):
            out = 0
            for expert in self.experts:
                out = out + expert(x)
            return out

    check(lambda: Stack([Outer() for _ in range(3)]), X)
    assert names("Block") == ["TRACED", "REUSED", "REUSED", "REUSED"]
    assert names("test_blocks_that_are_called_in_a_block.<locals>.Outer") == ["TRACED", "REUSED", "REUSED"]


class Unrolled(nn.Module):
    """Repeats itself inside, without modules that say so."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        h = self.norm(self.linear(x))
        for _ in range(6):
            h = (h.sin() * x).cos() + (h * 2).tanh().relu()
        return h


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_repeats_in_a_body_are_found_too(backend):
    check(lambda: Stack([Unrolled() for _ in range(4)]), X, backend=backend)
    assert names("Unrolled") == ["TRACED", "REUSED", "REUSED", "REUSED"]
    assert counters["graph_deduplication"]["bodies_in_bodies"] > 0


class Beside(nn.Module):
    """Calls its blocks, and computes the same without them too."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(blocks(2))

    def forward(self, x, weights):
        for layer in self.layers:
            x = layer(x)
        for weight, bias, scale, shift in weights:
            h = nn.functional.layer_norm(nn.functional.linear(x, weight, bias), (4,), scale, shift, 1e-5)
            x = x + h.relu() * 2.0
        return x


def test_equal_regions_of_modules_and_of_the_search_share_a_body():
    graphs = []

    def backend(gm, _):
        graphs.append(gm)
        return gm.forward

    model = Beside().requires_grad_(False)
    weights = [[torch.randn(4, 4), torch.randn(4), torch.randn(4), torch.randn(4)] for _ in range(3)]
    with torch._dynamo.config.patch(use_graph_deduplication=True, graph_deduplication_lint=True):
        torch.testing.assert_close(torch.compile(model, backend=backend)(X, weights), model(X, weights))
    called = [n.args[1] for n in graphs[0].graph.nodes if n.target is torch.ops.higher_order.invoke_subgraph]
    assert len(called) == 5
    assert len(set(called)) == 1


def test_with_the_knob_off_there_are_no_automatic_regions():
    with torch._dynamo.config.patch(automatic_nested_compile_regions=False):
        check(lambda: Stack(blocks()), X, regions=False)
    assert outcomes() == []


def test_without_the_flag_there_are_no_automatic_regions():
    with torch._dynamo.config.patch(use_graph_deduplication=False):
        torch.compile(Stack(blocks()), backend="eager")(X)
    assert outcomes() == []


def test_a_model_of_classes_that_do_not_repeat():
    kinds = [type(f"Kind{k}", (Block,), {}) for k in range(200)]
    model = Stack([kind(4) for kind in kinds])
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(X), model(X))
    assert outcomes() == []


def test_reports_tell_automatic_calls():
    import torch_regions

    check(lambda: Stack(blocks()), X)
    assert counters["regions"]["automatic: reused"] == 3
    assert counters["regions"]["automatic: traced"] == 1
    assert "(automatic)" in str(torch_regions.report())


@pytest.mark.parametrize("seed", range(8))
def test_random_stacks(seed):
    source = random.Random(seed)

    def build():
        chance = random.Random(seed)
        kinds = [
            Block,
            lambda d: Odd(chance.randrange(2)),
            lambda d: Switched(chance.random() < 0.5),
            lambda d: Drops(),
        ]
        picked = chance.sample(kinds, 2)
        return Stack([chance.choice(picked)(4) for _ in range(chance.randrange(2, 9))])

    check(build, X, backend=source.choice(["eager", "aot_eager"]))


def test_final_reasons_are_reasons_of_a_miss():
    from torch._dynamo.regions.trace import candidates

    assert set(ReuseMissReason) > candidates._FINAL
