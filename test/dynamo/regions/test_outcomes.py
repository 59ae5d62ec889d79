"""Each call of a marked region has one outcome, and one that stayed flat has its reason."""

import collections

import pytest
import torch
import torch._dynamo
from testing.marked_cases import became, compiled
from torch._dynamo.regions.outcomes import Outcome, RegionInlineReason, outcomes
from torch._dynamo.regions.outline import calls as outline_calls
from torch._dynamo.utils import counters


region = torch.compiler.nested_compile_region
X = torch.arange(16.0).view(4, 4) / 16
pytestmark = pytest.mark.usefixtures("bodies")


@region
def sine(x):
    return x.sin() + 1


@region
def breaks(x):
    h = x.sin()
    torch._dynamo.graph_break()
    return h.cos()


@region
def raises(x):
    h = x.sin()
    if h.shape[0] == 4:
        raise ValueError("four")
    return h


@region
def fails_as_operator(x):
    return x.sin() @ torch.ones(3, 3)


@region
def passes_through(x):
    return x


@region
def draws(x):
    return torch.nn.functional.alpha_dropout(x, 0.5, True)


@region
def only_views(x):
    return x.view(16)


def _catching(x):
    try:
        return raises(x)
    except ValueError:
        return x.cos()


REACHED = {
    RegionInlineReason.GRAPH_BREAK: lambda x: breaks(x),
    RegionInlineReason.RAISED: _catching,
    RegionInlineReason.NO_OPERATORS: lambda x: passes_through(x).sin(),
    RegionInlineReason.INSIDE_HIGHER_ORDER_OP: lambda x: torch.cond(x.sum() > 0, sine, torch.cos, (x,)),
    RegionInlineReason.NO_LEGAL_OPERATORS: lambda x: draws(x),
    RegionInlineReason.NOTHING_INSIDE_BOUNDARY: lambda x: only_views(x) * 2,
}


@pytest.mark.parametrize("reason", REACHED, ids=lambda r: r.name)
def test_a_call_that_stays_flat_has_its_reason(reason):
    compiled(REACHED[reason], X, fullgraph=False)
    assert became() == [reason.name]
    flat = {k: n for k, n in counters["regions"].items() if not k.startswith("not reused")}
    assert flat == {"inlined": 1, f"inlined: {reason.value}": 1}


def test_an_operators_error_counts_as_raised():
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError):
        compiled(fails_as_operator, X)
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError):
        compiled(lambda x: fails_as_operator(x), X)
    assert became() == ["RAISED"]


def test_when_planning_fails_the_calls_stay_flat(monkeypatch):
    def fail(self):
        raise RuntimeError("planning")

    monkeypatch.setattr(outline_calls._Plan, "pieces", fail)
    with torch._dynamo.config.patch(graph_deduplication_lint=False):
        torch.testing.assert_close(compiled(lambda x: sine(sine(x)), X), (X.sin() + 1).sin() + 1)
    assert became() == ["REUSED", "FAILED"]  # what was stamped out is put back as operators
    assert RegionInlineReason.FAILED not in REACHED


def test_every_reason_is_reached_by_a_test():
    # Two are of regions that the program did not mark: trace/test_automatic.py, trace/test_own_symbols.py.
    others = {RegionInlineReason.FAILED, RegionInlineReason.NOT_REPEATED, RegionInlineReason.OWN_SIZES}
    others.add(RegionInlineReason.COMPILED_AUTOGRAD)  # test_beside_features.py
    others |= {RegionInlineReason.AOTAUTOGRAD_OPTION, RegionInlineReason.MEMORY_BUDGET}  # test_options.py
    assert others.union(REACHED) == set(RegionInlineReason)


def test_each_call_has_one_outcome():
    def f(x):
        for k in range(5):
            x = sine(x) + k
        return passes_through(x)

    compiled(f, X)
    names = collections.Counter((o.function, o.outcome) for o in outcomes())
    assert names == {
        ("sine", Outcome.TRACED): 1,
        ("sine", Outcome.REUSED): 4,
        ("passes_through", Outcome.INLINED): 1,
    }
    assert {o.caller.partition(":")[0] for o in outcomes()} == {__file__}
    assert (counters["regions"]["traced"], counters["regions"]["reused"]) == (1, 4)


def test_a_call_in_a_body_has_an_outcome_of_its_own():
    @region
    def outer(x):
        return sine(x) * sine(x.cos())

    compiled(lambda x: outer(x) + outer(x * 2), X)
    found = sorted((o.function.rpartition(".")[2], o.outcome.name) for o in outcomes())
    # A call that is stamped out has none inside it.
    assert found == [("outer", "REUSED"), ("outer", "TRACED"), ("sine", "REUSED"), ("sine", "TRACED")]
