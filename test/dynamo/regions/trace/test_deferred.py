"""Constants that a call is made with: read when the program asks for their value, and not before.

And what a call changes outside of it, which is done again for a call that is stamped out.
"""

import copy

import pytest
import torch
import torch._dynamo
from testing import deferred_lookups, growing_caches
from testing.deferred_lists import LISTS
from testing.deferred_programs import PROGRAMS, X
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves


ALL = {**PROGRAMS, **LISTS, **growing_caches.PROGRAMS, **deferred_lookups.PROGRAMS}


def _state(thing):
    if isinstance(thing, nn.Module):
        return [{k: v for k, v in vars(m).items() if k in ("calls", "last")} for m in thing.modules()], dict(
            thing.state_dict()
        )
    if isinstance(thing, (list, tuple)):
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
@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_as_without_a_mark(make, verified):
    wanted = _seen(make, lambda body: body, False)
    counters.clear()
    with torch._dynamo.config.patch(graph_deduplication_lint=True, verify_region_reuse=verified):
        assert _seen(make, torch.compiler.nested_compile_region, True) == wanted


@pytest.mark.parametrize("make", [m for m, traced in ALL.items() if traced], ids=lambda make: make.__name__)
def test_traced_no_more_often_than_needed(make):
    torch._dynamo.reset()
    counters.clear()
    program, _ = make(torch.compiler.nested_compile_region)
    with torch.no_grad():
        torch.compile(program, backend="eager", fullgraph=True)(X)
    assert counters["regions"]["traced"] == ALL[make]
    calls = counters["regions"]["traced"] + counters["regions"]["reused"]
    assert calls >= 3 and counters["regions"]["inlined"] == 0


def _trained(make, mark, backend):
    """Results of two calls that are differentiated, the gradients that came of it, and whether autograd refused.

    It does where a slot keeps what a first call made.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    program, state = make(mark)
    weights = list(state.requires_grad_(True).parameters()) if isinstance(state, nn.Module) else []
    run = torch.compile(program, backend=backend) if backend else program
    seen = []
    for k in range(2):
        x = (X + k).requires_grad_()
        try:
            result = run(x)
            outs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
            sum((t * t).sum() for t in outs).backward()
        except RuntimeError:
            return seen, True
        seen += [outs, x.grad, *(w.grad.clone() for w in weights if w.grad is not None)]
    return seen, False


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_trained_as_in_eager(make):
    wanted, wanted_refusal = _trained(make, lambda body: body, None)
    with torch._dynamo.config.patch(graph_deduplication_lint=True):
        got, refusal = _trained(make, torch.compiler.nested_compile_region, "aot_eager")
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert refusal == wanted_refusal and got
