"""Looking whether an earlier call's body may be reused changes nothing, and what it looks at is guarded as by tracing."""

import collections

import pytest
import torch
import torch._dynamo
from testing.changing_things import Plain
from torch import nn
from torch._dynamo.regions.trace import call as trace_call
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters


X = torch.linspace(0.1, 1.0, 4)
region = torch.compiler.nested_compile_region


def calling(run, layers):
    def f(x):
        for layer in layers:
            x = run(layer, x)
        return x

    return f


def same_as_unmarked(body, make_layers, change=lambda k, layers: None, calls=3):
    """Compares results, layers and the number of compilations with those of the function without a mark."""
    seen = []
    for mark in (lambda fn: fn, region):
        torch._dynamo.reset()
        layers, counter = make_layers(), CompileCounter()
        compiled = torch.compile(calling(mark(body), layers), backend=counter)
        after = []
        with torch.no_grad():
            for k in range(calls):
                change(k, layers)
                after.append((compiled(X).tolist(), counter.frame_count, repr([vars(layer) for layer in layers])))
        seen.append(after)
    assert seen[1] == seen[0]


class Text(dict):
    """A dict of the user's, with a say about missing keys."""

    asked = 0

    def __missing__(self, key):
        Text.asked += 1
        return 4.0


@pytest.mark.parametrize(
    "kind", [lambda **k: collections.defaultdict(float, **k), Text], ids=["defaultdict", "missing"]
)
def test_looking_adds_nothing_to_a_dict(kind):
    layers = [Plain(kept=kind(a=1.0)), Plain(kept=kind(a=1.0)), Plain(kept=kind()), Plain(kept=kind(a=1.0))]
    f = calling(region(lambda layer, x: x.sin() * (layer.kept["a"] if "a" in layer.kept else 2.0)), layers)
    Text.asked = 0
    result = torch.compile(f, backend="eager", fullgraph=True)(X)
    assert not layers[2].kept and Text.asked == 0
    torch.testing.assert_close(result, f(X))


class Counting:
    """What it is asked for, and does not have, it counts."""

    asked = 0

    def __init__(self, *scales):
        if scales:
            self.scale = scales[0]

    def __getattr__(self, name):
        if name != "scale":
            raise AttributeError(name)
        Counting.asked += 1
        return 3.0


class Computed:
    @property
    def scale(self):
        Counting.asked += 1
        return 5.0


@pytest.mark.parametrize("other", [Counting, Computed])
def test_looking_runs_no_code_of_the_users(other):
    layers = [Plain(part=part) for part in (Counting(2.0), Counting(2.0), other(), Counting(2.0))]
    f = calling(region(lambda layer, x: x.sin() * layer.part.scale), layers)
    Counting.asked = 0
    result = torch.compile(f, backend="eager", fullgraph=True)(X)
    assert Counting.asked == 1
    torch.testing.assert_close(result, f(X))
    assert counters["regions"]["reused"] >= 1


class Delegating(nn.Module):
    """One that finds by code of its own what it does not have."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("linear"), name)

    def forward(self, x):
        return self.linear(x).sin()


def test_parts_of_a_module_are_found_without_its_code():
    layers = nn.ModuleList(Delegating() for _ in range(4))
    f = calling(region(lambda layer, x: layer(x)), layers)
    # With the flag, the linear layer inside the region would be looked at for a region of its own.
    with torch.no_grad(), torch._dynamo.config.patch(use_graph_deduplication=False):
        torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))
    assert counters["regions"] == {"traced": 1, "reused": 3}


@pytest.mark.parametrize("kind", [dict, Text])
def test_the_order_of_keys_of_a_reused_call_is_guarded(kind):
    def body(layer, x):
        for name, scale in layer.kept.items():
            x = x.sin() * scale if name == "a" else x.cos() + scale
        return x

    def change(k, layers):
        if k == 1:
            layers[2].kept = kind({"b": 3.0, "a": 2.0})

    same_as_unmarked(body, lambda: [Plain(kept=kind({"a": 2.0, "b": 3.0})) for _ in range(4)], change)


def test_the_order_of_modules_of_a_reused_call_is_guarded():
    torch.manual_seed(0)
    weight = torch.randn(4, 4)

    class Holder:
        def __init__(self):
            linear = nn.Linear(4, 4)
            linear.weight = nn.Parameter(weight.clone())
            nn.init.ones_(linear.bias)
            self.parts = nn.ModuleDict({"a": linear, "b": nn.Tanh()})

    def body(layer, x):
        for part in layer.parts.values():
            x = part(x).sin()
        return x

    def change(k, layers):
        if k == 1:
            layers[2].parts["a"] = layers[2].parts.pop("a")

    same_as_unmarked(body, lambda: [Holder() for _ in range(4)], change)


def test_keys_of_a_reused_calls_dict_subclass_are_guarded():
    def change(k, layers):
        if k == 1:
            layers[2].kept["a"] = 5.0

    same_as_unmarked(
        lambda layer, x: x.sin() * layer.kept["a"], lambda: [Plain(kept=Text(a=2.0)) for _ in range(4)], change
    )


def test_a_call_that_fails_to_be_stamped_out_is_traced(monkeypatch):
    f = calling(region(lambda layer, x: x.sin() * layer.scale), [Plain(scale=2.0) for _ in range(3)])

    def failing(*args):
        raise ValueError

    monkeypatch.setattr(trace_call, "stamp_out", failing)
    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))
    assert counters["regions"] == {"traced": 3}


OTHERS = {
    "has a key": (
        lambda layer: "k" in layer.kept,
        [Plain(kept={"k": 1}), Plain(kept={}), Plain(kept={"k": 1, "j": 2})],
    ),
    "has an attribute": (lambda layer: hasattr(layer, "kept"), [Plain(kept=1), Plain(), Plain(other=2)]),
    "is of another kind": (lambda layer: len(layer.kept), [Plain(kept=k) for k in ({"k": 1}, [1], (1,), {3})]),
}


@pytest.mark.parametrize("what", OTHERS)
def test_one_key_for_what_cannot_be_guarded_alike(what):
    looks, layers = OTHERS[what]
    run = torch.compiler.nested_compile_region(
        lambda layer, x: x.sin() * (2.0 if looks(layer) else 2.0), reuse_hash_fn=lambda layer, x: 7
    )
    f = calling(run, layers)
    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))


@pytest.mark.parametrize("key", [3.0, 3j, b"3"], ids=str)
def test_a_guard_on_a_key_that_is_any_plain_constant_is_made_for_each_call(key):
    def change(k, layers):
        if k == 1:
            layers[2].kept[key] = 1
        if k == 2:
            layers[1].kept[7.0] = 1

    def body(layer, x):
        return x.sin() * (2.0 if key in layer.kept else 5.0)

    same_as_unmarked(body, lambda: [Plain(kept={2.0: 1, 9.0: 1}) for _ in range(4)], change)
    assert counters["regions"]["reused"] >= 3
