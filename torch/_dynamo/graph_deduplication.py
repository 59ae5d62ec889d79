"""Outlines the repeated regions of a Dynamo output graph: each becomes a call of a shared body.

Precondition: the regions of ``GraphRegionTracker.get_identical_regions`` are disjoint runs of
program order, equal in keys and wiring, and nothing crosses a boundary that may not (see the
Notes in region_boundary.py).
Postcondition: the graph computes the same; every region is one ``invoke_subgraph`` call in the
place of its last node, of one body a group; no other node has moved.

With ``torch._dynamo.config.graph_deduplication_lint`` every one of these conditions is recomputed
from scratch before and after each replacement, and a violation raises ``RegionInvariantError``.
"""

from __future__ import annotations

import itertools
import logging
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch.fx
from torch.utils._ordered_set import OrderedSet

import torch
from torch._dynamo import config
from torch._dynamo.graph_region_tracker import GraphRegionTracker, Node, Region
from torch._dynamo.region_boundary import GraphView


if TYPE_CHECKING:
    from torch._dynamo.output_graph import OutputGraph


ExtraDeps = dict[Node, OrderedSet[Node]]

log = logging.getLogger(__name__)
hierarchical_log = torch._logging.getArtifactLogger(__name__, "hierarchical_compile")


class RegionInvariantError(AssertionError):
    """A pre- or postcondition of outlining does not hold; raised under lint only."""


def apply_graph_deduplication(output_graph: OutputGraph) -> dict[str, torch.fx.GraphModule]:
    """Replaces repeated regions of ``output_graph.graph`` by calls, in place.

    Returns the bodies by the name under which they are installed in ``output_graph``.
    """
    from torch._dynamo.utils import counters

    tracker = output_graph.region_tracker
    try:
        groups = tracker.get_identical_regions(output_graph.graph)
    except Exception:
        if config.graph_deduplication_lint:
            raise
        # Nothing has been changed yet: the flat graph is right.
        log.warning("no regions were outlined: looking for them failed", exc_info=True)
        counters["graph_deduplication"]["failed"] += 1
        return {}
    bodies: dict[str, torch.fx.GraphModule] = {}
    for group in groups:
        name, body = _outline_group(output_graph, tracker, group)
        bodies[name] = body
        hierarchical_log.debug("%s: %d calls of a body of %d operators", name, len(group), len(group[0]))
    stats = tracker.stats
    for counter, value in (
        ("bodies", stats.groups),
        ("calls", stats.regions),
        ("operators", stats.operators),
        ("operators_outlined", stats.outlined),
    ):
        counters["graph_deduplication"][counter] += value
    return bodies


def _outline_group(
    output_graph: OutputGraph, tracker: GraphRegionTracker, group: list[Region]
) -> tuple[str, torch.fx.GraphModule]:
    """Makes the body of a group of identical regions and replaces each region by a call of it."""
    graph = output_graph.graph
    places = _used_outside(group)
    if config.graph_deduplication_lint:
        _check_regions(graph, tracker, group, places)
    body = _make_body(group[0], places)
    name = output_graph.install_subgraph("subgraph", torch.fx.GraphModule(torch.nn.Module(), body))
    with graph.inserting_before():
        body_node = graph.get_attr(name)
    for region in group:
        inputs = _inputs(region)
        if config.graph_deduplication_lint:
            _check_body(body, region, inputs, places)
        _replace(graph, region, inputs, places, body_node, name)
        if config.graph_deduplication_lint:
            graph.lint()
    return name, output_graph.nn_modules[name]  # type: ignore[return-value]


def _inputs(region: Region) -> list[Node]:
    """Values that a region takes from outside, by first use."""
    inside = set(region)
    found: dict[Node, None] = {}

    def visit(operand: Node) -> Node:
        if operand not in inside:
            found[operand] = None
        return operand

    for node in region:
        torch.fx.map_arg((node.args, node.kwargs), visit)
    return list(found)


def _used_outside(group: Iterable[Region]) -> list[int]:
    """Places in a region whose values are used outside it, in any region of the group."""
    places: set[int] = set()
    for region in group:
        inside = set(region)
        places.update(i for i, n in enumerate(region) if not inside.issuperset(n.users))
    return sorted(places)


def _make_body(region: Region, places: list[int]) -> torch.fx.Graph:
    """The graph of a region: its inputs in, the values at ``places`` out, as a tuple."""
    body = torch.fx.Graph()
    copy: dict[Node, Node] = {}
    for k, outer in enumerate(_inputs(region)):
        copy[outer] = body.placeholder(f"arg{k}")
        if "example_value" in outer.meta:
            copy[outer].meta["example_value"] = outer.meta["example_value"]
    for node in region:
        copy[node] = body.node_copy(node, copy.__getitem__)
    body.output(tuple(copy[region[place]] for place in places))
    return body


def _replace(
    graph: torch.fx.Graph,
    region: Region,
    inputs: list[Node],
    places: list[int],
    body_node: Node,
    name: str,
) -> None:
    """Puts a call of a body in the place of a region's last node, and erases the region."""
    results = [region[place] for place in places]
    with graph.inserting_after(region[-1]):
        call = graph.call_function(torch.ops.higher_order.invoke_subgraph, (body_node, name, *inputs))
    call.meta = {k: v for k, v in region[-1].meta.items() if k in ("stack_trace", "creation_timestamp")}
    call.meta["example_value"] = tuple(r.meta["example_value"] for r in results)
    previous = call
    for k, result in enumerate(results):
        with graph.inserting_after(previous):
            outer = graph.call_function(operator.getitem, (call, k))
        outer.meta = dict(result.meta)
        result.replace_all_uses_with(outer, delete_user_cb=_not_in(region))
        previous = outer
    for node in reversed(region):
        graph.erase_node(node)


def _not_in(region: Region) -> Callable[[Node], bool]:
    inside = set(region)
    return lambda user: user not in inside


def _check_regions(graph: torch.fx.Graph, tracker: GraphRegionTracker, group: list[Region], places: list[int]) -> None:
    """Recomputes the preconditions of outlining ``group`` from the graph as it now is."""
    view = GraphView(graph, tracker.written_operands)
    signatures = set()
    for region in group:
        start = view.position[region[0]]
        end = start + len(region)
        if view.nodes[start:end] != region:
            raise RegionInvariantError(f"region {region} is not a run of program order")
        if broken := view.offences(start, end, places):
            names = [view.nodes[i].name for i in sorted(broken)]
            raise RegionInvariantError(f"{names} may not cross the boundary of region {region}")
        signatures.add(view.signature(start, end))
    if len(signatures) != 1:
        raise RegionInvariantError(f"regions {group} differ in wiring")


def _check_body(body: torch.fx.Graph, region: Region, inputs: list[Node], places: list[int]) -> None:
    """Checks that a call of ``body`` on ``inputs`` does what ``region`` does, node by node."""
    stand_in = dict(zip(body.find_nodes(op="placeholder"), inputs, strict=True))
    inner = [n for n in body.nodes if n.op not in ("placeholder", "output")]
    for ours, theirs in zip(inner, region, strict=True):
        mapped = torch.fx.map_arg((ours.args, ours.kwargs), stand_in.__getitem__)
        same = (ours.op, ours.target) == (theirs.op, theirs.target)
        if not same or repr(mapped) != repr((theirs.args, theirs.kwargs)):
            raise RegionInvariantError(f"{ours.format_node()} stands for {theirs.format_node()}")
        stand_in[ours] = theirs
    returned = [stand_in[n] for n in body.output_node().args[0]]  # type: ignore[union-attr]
    if returned != [region[place] for place in places]:
        raise RegionInvariantError(f"the body returns {returned}, wanted {places} of {region}")


def _sorted_behind(nodes: Iterable[Node], blockers: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """``nodes`` in their order, but each behind all its blockers.

    A node that has to wait comes right after the last blocker it waited for.  A node that is on
    a cycle is left out.  Linear in nodes and blockers, if the order was nearly right.
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

    Raises AssertionError when there is a cycle; the graph is unchanged then.
    """
    body = [n for n in graph.nodes if n.op != "output"]
    order = _sorted_behind(body, _operands(node_to_additional_deps))
    if len(order) != len(body):
        raise AssertionError("cannot sort a graph with a cycle in its dependencies")
    _rearrange(order)


def _stable_topological_sort_region(graph: torch.fx.Graph, region: OrderedSet[Node]) -> None:
    """Sorts the nodes of ``region`` among themselves; operands outside it count as done.

    Raises AssertionError when there is a cycle.
    """
    order = _sorted_behind(region, lambda node: [o for o in node._input_nodes if o in region])
    if len(order) != len(region):
        raise AssertionError("cannot sort a region with a cycle in its dependencies")
    _rearrange(order)


def _has_cycle(graph: torch.fx.Graph, node_to_additional_deps: ExtraDeps) -> bool:
    """Whether operands and additional dependencies together form a cycle."""
    nodes: list[Any] = [n for n in graph.nodes if n.op != "output"]
    return len(_sorted_behind(nodes, _operands(node_to_additional_deps))) != len(nodes)
