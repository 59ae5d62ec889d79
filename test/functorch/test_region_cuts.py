"""What crosses the boundary of a region is saved as stock's solver would save it, without asking the solver."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._functorch.config
from testing.region_models import Graphs, Stack, mark, train
from torch._functorch import partitioners

from torch_regions.overlay import stock


@pytest.fixture
def solved(monkeypatch):
    """For each joint graph with regions: nodes in it, nodes that the solver got; our answer is asserted to be stock's."""
    sizes: list[tuple[int, int]] = []
    ours, theirs = partitioners.solve_min_cut, stock("torch._functorch.partitioners:solve_min_cut")
    monkeypatch.setattr("torch._functorch._aot_autograd.region_cuts.PartOfGraph", _Noted)

    def both(graph: Any, info: Any, options: Any, dont_ban: Any = None) -> Any:
        _Noted.last = None
        answer = ours(graph, info, options, dont_ban)
        assert answer[0] == theirs(graph, info, options, dont_ban)[0]
        if graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph):
            sizes.append((len(graph.nodes), len(_Noted.last.nodes) if _Noted.last else len(graph.nodes)))
        return answer

    monkeypatch.setattr(partitioners, "solve_min_cut", both)
    return sizes


class _Noted:
    last: Any = None

    def __init__(self, graph: Any, nodes: list[Any]) -> None:
        self.nodes, self.owning_module = nodes, graph.owning_module
        _Noted.last = self


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_answer_is_that_of_stock(solved, dynamic):
    expected = train(Stack())
    torch.testing.assert_close(train(mark(Stack()), Graphs(), dynamic=dynamic), expected)
    assert len(solved) == 1


def test_what_the_solver_gets_does_not_grow_with_the_boundary(solved):
    for layers in (4, 12):
        train(mark(Stack(layers)), Graphs())
    (few, few_left), (many, many_left) = solved
    # Of each block: a gate, and what is made of it between the blocks.
    assert (many_left - few_left) / (many - few) < 0.5


def test_where_a_view_may_be_recomputed_the_solver_gets_all(solved):
    with torch._functorch.config.patch(recompute_views=True):
        train(mark(Stack()), Graphs())
    assert solved and all(size == left for size, left in solved)


@pytest.mark.parametrize(
    "options",
    [{"activation_memory_budget": 0.5}, {"aggressive_recomputation": True}, {"ban_recompute_not_in_allowlist": False}],
)
def test_where_a_call_may_be_run_again_there_is_none(solved, options):
    with torch._functorch.config.patch(options):
        train(mark(Stack()), Graphs())
    assert not solved


@torch._dynamo.config.patch(use_graph_deduplication=False)
def test_a_graph_without_regions_goes_to_the_solver_whole(monkeypatch):
    monkeypatch.setattr("torch._functorch._aot_autograd.region_cuts.Settled", None)
    torch.testing.assert_close(train(Stack(), Graphs()), train(Stack()))
