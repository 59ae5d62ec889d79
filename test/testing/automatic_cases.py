"""Programs with repeated modules, run flat and with the flag: nothing that can be seen may differ."""

import copy

import torch
import torch._dynamo
from testing.observing import difference, observe
from torch._dynamo.regions.outcomes import forget_outcomes, outcomes
from torch._dynamo.utils import counters


class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
        self.norm = torch.nn.LayerNorm(size)
        self.scale = 2.0

    def forward(self, x):
        return x + self.norm(self.linear(x)).relu() * self.scale


X = torch.linspace(-1, 1, 8).view(2, 4)


def blocks(n=4):
    return [Block(4) for _ in range(n)]


class Stack(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def stack_of(kind):
    """Makes a stack of four blocks of one class."""
    return lambda: Stack([kind(4) for _ in range(4)])


class Odd(torch.nn.Module):
    def __init__(self, k):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.k = k
        self.act = torch.nn.GELU() if k % 2 else torch.nn.ReLU()

    def forward(self, x):
        return x + self.act(self.norm(self.linear(x)))


class Switched(torch.nn.Module):
    def __init__(self, on):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.on = on

    def forward(self, x):
        h = self.norm(self.linear(x))
        return h.sin() + x if self.on else h.cos() - x


def twice(module, x):
    return type(module).forward(module, x) * 2


def check(build, *args, backend="aot_eager", fullgraph=True, verify=True, regions=True):
    """Asserts that the flag changes nothing of what the module that ``build`` makes does, in training and inference.

    Leaves the outcomes of the run without gradients. With ``verify``, each reuse is compared with a trace too.
    """
    with torch._dynamo.config.patch(graph_deduplication_lint=True):
        for training in (True, False):
            compare(build, *args, backend=backend, fullgraph=fullgraph, training=training)
        if verify:
            kept, counted = outcomes(), copy.deepcopy(counters["regions"])
            with torch._dynamo.config.patch(verify_region_reuse=True):
                compare(build, *args, backend="eager", fullgraph=fullgraph)
            forget_outcomes()
            from torch._dynamo.regions import outcomes as region_outcomes

            region_outcomes._kept.extend(kept)
            counters["regions"].clear()
            counters["regions"].update(counted)


def compare(build, *args, backend="eager", fullgraph=True, training=True):
    """Asserts that what ``build`` makes does the same flat and with the flag."""
    seen = []
    for flag in (False, True):
        torch._dynamo.reset()
        forget_outcomes()
        counters["regions"].clear()
        torch.manual_seed(0)
        model = build()
        state = model if isinstance(model, torch.nn.Module) else None
        given = [_given(arg, training) for arg in args]
        if state is not None and not training:
            state.requires_grad_(False)
        with torch._dynamo.config.patch(use_graph_deduplication=flag):
            seen.append(observe(model, tuple(given), backend, fullgraph, state=state))
    problem = difference(*seen)
    assert problem is None, problem


def _given(arg, training):
    return arg.clone().requires_grad_(training) if isinstance(arg, torch.Tensor) else copy.deepcopy(arg)


def outcomes_of(function):
    return [o for o in outcomes() if o.function == function]


def names(function):
    """Outcomes of the calls of a class, first those that were traced."""
    found = [o.outcome.name for o in outcomes_of(function)]
    return sorted(found, key=["TRACED", "REUSED", "INLINED"].index)
