"""A miss of AOTAutogradCache names the first part in which the nearest entry differs; a bypass names its reason."""

from __future__ import annotations

import pytest
import torch
from testing import processes
from testing.cached_compile import Block
from testing.kernels import fresh_graphs
from torch._functorch._aot_autograd import autograd_cache_misses as misses

import torch_regions


def gelu(x):
    return torch.nn.functional.gelu(x.sin() * 2.0)


def other_call(x):
    return torch.nn.functional.gelu(x.cos() * 2.0)


def other_number(x):
    return torch.nn.functional.gelu(x.sin() * 3.0)


def compile_and_run(program, *args) -> list[misses.Told]:
    """What one compile reported."""
    before = len(misses.told())
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(program, dynamic=False)(*args)
    return misses.told()[before:]


@pytest.fixture
def first():
    """A cache that has the program ``gelu`` for eight elements."""
    misses.forget()
    with fresh_graphs():
        (told,) = compile_and_run(gelu, torch.ones(8))
        assert told == misses.Told("miss", "there is no other entry to compare with")
        yield


def test_another_call(first):
    (told,) = compile_and_run(other_call, torch.ones(8))
    assert "differs in graph" in told.reason and "first at node 2 of the graph, a call of cos" in told.reason
    assert "also in" not in told.reason


def test_another_number(first):
    (told,) = compile_and_run(other_number, torch.ones(8))
    assert "differs in graph" in told.reason and "a call of _operator.mul" in told.reason


def test_another_size(first):
    (told,) = compile_and_run(gelu, torch.ones(9))
    assert "differs in inputs (else code for other shapes" in told.reason


def test_another_option(first):
    with torch._inductor.config.patch(epilogue_fusion=False):
        (told,) = compile_and_run(gelu, torch.ones(8))
    assert "differs in inductor_config" in told.reason


def test_a_leaf_that_is_written_to():
    """It was given the code for a tensor that is none. Autograd refused its write."""

    def program(x, w):
        x.detach().mul_(2)
        return (x @ w).tanh()

    misses.forget()
    with fresh_graphs(), torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
        for leaf in (False, True):
            torch._dynamo.reset()
            x, w = torch.ones(3, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
            torch.compile(program)(x if leaf else x * 1, w)
    assert "differs in leaves" in misses.told()[-1].reason


def test_the_nearest_of_several(first):
    compile_and_run(other_call, torch.ones(5))
    (told,) = compile_and_run(other_call, torch.ones(8))
    # One part differs from either; more of the graph is common with the one that makes the same calls.
    assert "differs in inputs" in told.reason or "differs in graph" in told.reason
    assert "also in" not in told.reason


def test_a_hit_tells_nothing(first):
    assert compile_and_run(gelu, torch.ones(8)) == []


def test_a_bypass_tells_why(first):
    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))

    told = compile_and_run(branch, torch.ones(8))
    assert [t.outcome for t in told] == ["bypass"]
    assert "HigherOrderOperator: cond" in told[0].reason


def test_an_entry_for_other_sizes():
    misses.forget()
    with fresh_graphs(), torch.no_grad():
        reasons = []
        for size in (8, 200):
            torch._dynamo.reset()
            x = torch.ones(size, 3)
            torch._dynamo.mark_dynamic(x, 0)
            torch.compile(lambda x: x * 2 if x.shape[0] < 100 else x * 2)(x)
            reasons = [t.reason for t in misses.told()]
    # The branch narrows what the size may be, so the two keys differ in that.
    assert "differs in symbols" in reasons[-1] or "for other sizes" in reasons[-1], reasons


def test_the_report_says_it(first):
    compile_and_run(other_call, torch.ones(8))
    lines = str(torch_regions.report()).splitlines()
    assert any(line.startswith("compile cache: miss (1): the nearest entry") and "cos" in line for line in lines)


def test_what_another_process_saved(tmp_path):
    """The log compares with entries that other processes saved."""
    for program in ("", "train"):
        process = processes.start(
            "cached_compile", tmp_path, 1, program, TORCH_LOGS="+torch._functorch._aot_autograd.autograd_cache"
        )
        _, log = process.communicate(timeout=300)
        assert process.returncode == 0, log
        told = [line for line in log.splitlines() if "cache miss for key" in line]
    assert "the nearest entry" in told[0] and "differs in inputs" in told[0], told


def test_no_more_is_kept_than_the_limits_say(monkeypatch):
    monkeypatch.setattr(misses, "MAX_NODES", 3)
    misses.forget()
    with fresh_graphs():
        compile_and_run(gelu, torch.ones(8))
        compile_and_run(other_number, torch.ones(8))
    assert all(len(summary.nodes) == 3 for summary in misses._remembered)
    for n in range(2 * misses.MAX_TOLD):
        misses.tell("bypass", str(n))
    assert len(misses.told()) == misses.MAX_TOLD
    misses.forget()


def test_keys_hold_no_graph():
    import gc
    import weakref

    graphs = []

    def backend(gm, inputs):
        graphs.append(weakref.ref(gm))
        return torch._inductor.compile(gm, inputs)

    with torch.no_grad():
        torch.compile(Block(0), backend=backend)(torch.ones(4, 8))
    torch._dynamo.reset()
    gc.collect()
    assert [graph() for graph in graphs] == [None]
