"""Constants that a call is made with: read when somebody asks for their value, and not before.

And what a call changes outside of it, which is done again for a call that is stamped out.
"""

import copy

import pytest
from held_programs import PROGRAMS, X
from torch._dynamo.utils import counters

import torch
import torch._dynamo
from torch import nn


def _state(thing):
    if isinstance(thing, nn.Module):
        return [{k: v for k, v in vars(m).items() if k in ("calls", "last")} for m in thing.modules()], dict(
            thing.state_dict()
        )
    if isinstance(thing, list):
        return [_state(item) for item in thing]
    return dict(vars(thing)) if hasattr(thing, "__dict__") else thing


def _seen(make, mark, compiled):
    """Results and state of two calls of a program, each printed: types and bits."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    program, state = make(mark)
    run = torch.compile(program, backend="eager", fullgraph=True) if compiled else program
    seen = []
    for k in range(2):
        with torch.no_grad():
            seen.append((run(X + k), copy.deepcopy(_state(state))))
    return repr(seen)


@pytest.mark.parametrize("verified", [False, True], ids=["reused", "verified"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_as_without_a_mark(make, verified):
    wanted = _seen(make, lambda body: body, False)
    counters.clear()
    with torch._dynamo.config.patch(graph_deduplication_lint=True, verify_region_reuse=verified):
        assert _seen(make, torch.compiler.nested_compile_region, True) == wanted


@pytest.mark.parametrize("make", [m for m, traced in PROGRAMS.items() if traced], ids=lambda make: make.__name__)
def test_traced_no_more_often_than_needed(make):
    torch._dynamo.reset()
    counters.clear()
    program, _ = make(torch.compiler.nested_compile_region)
    with torch.no_grad():
        torch.compile(program, backend="eager", fullgraph=True)(X)
    assert counters["regions"]["traced"] == PROGRAMS[make]
    calls = counters["regions"]["traced"] + counters["regions"]["reused"]
    assert calls >= 3 and counters["regions"]["inlined"] == 0
