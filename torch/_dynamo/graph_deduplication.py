"""The dedupe pass: outlines the repeated regions of a graph that are worth it by its policy.

regions/outline/outliner.py replaces a region by a call. The sorts and the cycle check below are part of stock's module
and stay for its callers; the pass does not need them.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx
from torch._dynamo import config
from torch._dynamo.graph_region_tracker import Node
from torch._dynamo.regions.outline.account import location_of
from torch._dynamo.regions.outline.outliner import Outliner, make_body, used_outside
from torch._dynamo.regions.outline.policy import policy_in
from torch.utils._ordered_set import OrderedSet


ExtraDeps = dict[Node, OrderedSet[Node]]

log = logging.getLogger(__name__)


def apply_graph_deduplication(output_graph: Any) -> dict[str, torch.fx.GraphModule]:
    """Replaces repeated regions of ``output_graph.graph`` by calls, in place.

    Returns the bodies by the name under which they are installed in ``output_graph``.
    """
    outliner = Outliner(output_graph.region_tracker, output_graph.install_subgraph)
    outline_repeats(outliner, output_graph.graph, 0)
    return outliner.bodies


def outline_repeats(outliner: Outliner, graph: torch.fx.Graph, depth: int) -> None:
    """Replaces repeated regions of ``graph``, which is a body inside ``depth`` others, by calls, in place."""
    from torch._dynamo.utils import counters

    tracker = outliner.tracker
    try:
        groups = tracker.find_groups(graph, outliner.numbers, policy_in(depth))
    except Exception:
        if config.graph_deduplication_lint:
            raise
        # Nothing has been changed yet, so the graph is flat and correct.
        log.warning("no regions were outlined: looking for them failed", exc_info=True)
        counters["graph_deduplication"]["failed"] += 1
        return
    for group in groups:
        regions = group.regions
        indices = used_outside(regions)
        written, copied = tracker.written_inputs(regions[0])
        body, _ = make_body(regions[0], indices, copied, autocasts=tracker.autocasts_of(regions[0]))
        outliner.check(graph, regions, indices, body)
        # Regions that the program marks have options; those found by search have None.
        whole = ((group.meaning, id(None)), tuple(indices), depth)
        name = outliner.names.get(whole)
        if name is None:
            name = outliner.install(whole, body, written, copied)
            outliner.note_size(name, regions[0])
        outliner.found.setdefault(name, []).extend(location_of(region) for region in regions)
        outliner.replace(graph, regions, indices, name)
    stats = tracker.stats
    if depth:
        counters["graph_deduplication"]["bodies_in_bodies"] += stats.groups
        return
    for counter, value in (
        ("bodies", stats.groups),
        ("calls", stats.regions),
        ("operators", stats.operators),
        ("operators_outlined", stats.outlined),
    ):
        counters["graph_deduplication"][counter] += value


def _sorted_behind(nodes: Iterable[Node], blockers: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """``nodes`` in their order, but each after all its blockers.

    A node that has to wait comes right after the last blocker it waited for. A node on a cycle is left out. Linear in
    nodes and blockers if the order is nearly right.
    """
    placed: set[Node] = set()
    order: list[Node] = []
    waiting: dict[Node, list[Node]] = {}
    for origin in nodes:
        ready = [origin]
        while ready:
            node = ready.pop()
            missing = [b for b in blockers(node) if b not in placed]
            if missing:
                waiting.setdefault(missing[-1], []).append(node)
                continue
            placed.add(node)
            order.append(node)
            ready.extend(reversed(waiting.pop(node, [])))
    return order


def _operands(extra: ExtraDeps) -> Callable[[Node], Iterable[Node]]:
    def blockers(node: Node) -> Iterable[Node]:
        operands = node._input_nodes
        return [*operands, *extra[node]] if node in extra else operands

    return blockers


def _rearrange(order: list[Node]) -> None:
    for previous, node in itertools.pairwise(order):
        if previous.next is not node:
            previous.append(node)


def _stable_topological_sort(graph: torch.fx.Graph, node_to_additional_deps: ExtraDeps) -> None:
    """Sorts a graph so that operands and additional dependencies come first; outputs stay last.

    Raises AssertionError if the dependencies form a cycle; the graph is unchanged then.
    """
    body = [n for n in graph.nodes if n.op != "output"]
    order = _sorted_behind(body, _operands(node_to_additional_deps))
    if len(order) != len(body):
        raise AssertionError("cannot sort a graph with a cycle in its dependencies")
    _rearrange(order)


def _stable_topological_sort_region(graph: torch.fx.Graph, region: OrderedSet[Node]) -> None:
    """Sorts the nodes of ``region`` among themselves, ignoring operands from outside.

    Raises AssertionError if the dependencies form a cycle.
    """
    order = _sorted_behind(region, lambda node: [o for o in node._input_nodes if o in region])
    if len(order) != len(region):
        raise AssertionError("cannot sort a region with a cycle in its dependencies")
    _rearrange(order)


def _has_cycle(graph: torch.fx.Graph, node_to_additional_deps: ExtraDeps) -> bool:
    """Whether operands and additional dependencies together form a cycle."""
    nodes: list[Any] = [n for n in graph.nodes if n.op != "output"]
    return len(_sorted_behind(nodes, _operands(node_to_additional_deps))) != len(nodes)
