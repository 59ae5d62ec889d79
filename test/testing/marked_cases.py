"""Programs written out that mark functions as regions: marked and unmarked they must do the same.

A case defines regions with ``mark`` and returns ``f(x, y, box, items, net)``. x and the parameters of
net require grad in training.
"""

import warnings

import pytest
import torch
from testing.observing import Box, Net, difference, observe
from torch._dynamo.regions.outcomes import Outcome, outcomes
from torch._dynamo.utils import counters


region = torch.compiler.nested_compile_region
ways = pytest.mark.parametrize(
    ("backend", "fullgraph", "training"),
    [("eager", False, True), ("aot_eager", True, True), ("aot_eager", False, False)],
    ids=["eager-breaks-training", "aot_eager-fullgraph-training", "aot_eager-breaks-inference"],
)


class Cases(dict):
    """The cases of a test file, by name; an instance decorates them."""

    def __call__(self, function):
        self[function.__name__] = function
        return function


def arguments(training):
    torch.manual_seed(0)
    net = Net()
    x, y = torch.randn(4, 4, requires_grad=training), torch.randn(4, 4)
    net.requires_grad_(training)
    return x, y, Box(torch.randn(4, 4)), [torch.randn(4, 4), torch.randn(4, 4)], net


def as_tuple(value):
    return value if isinstance(value, tuple) else ()


def unmarked(function):
    return function


def check_case(case, backend, fullgraph, training, gives_up=False):
    """Asserts that the mark changes nothing; ``gives_up``: Dynamo compiles nothing, marked or not."""
    seen = []
    for mark in (unmarked, region):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            f = case(mark)
            assert outcomes() == []
            seen.append(observe(f, arguments(training), backend, fullgraph, grad=training))
    problem = difference(*seen)
    assert problem is None, problem
    # Not of calls in a frame that Dynamo gives up at its end: they are traced, and it comes to nothing.
    gave_up = gives_up or any(len(r) == 2 and isinstance(r[0], str) for r in map(as_tuple, seen[1]["results"]))
    assert gave_up or outcomes() != []
    assert sum(counters["regions"][o.value] for o in Outcome) == len(outcomes())


def became():
    """Outcomes of all calls so far, by name of the reason or of the outcome."""
    return [o.reason.name if o.reason else o.outcome.name for o in outcomes()]


def compiled(f, *args, fullgraph=True):
    return torch.compile(f, backend="eager", fullgraph=fullgraph)(*args)
