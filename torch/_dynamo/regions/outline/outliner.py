"""Outlines identical regions of a graph: each becomes a call of a body that they share.

Precondition: the regions are disjoint runs of program order, equal in keys and wiring, and no boundary rule is broken
(see the Notes in graph_view.py).
Postcondition: the graph computes the same; every region is one ``invoke_subgraph`` call in the place of its last node;
no other node has moved.

With ``torch._dynamo.config.graph_deduplication_lint`` every one of these conditions is recomputed from scratch before
and after each replacement, and a violation raises ``RegionInvariantError``.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import Any

import torch
import torch.fx
from torch._dynamo import config
from torch._dynamo.graph_region_tracker import GraphRegionTracker, Node, Region
from torch._dynamo.regions.outline.copies import copy_back, copy_inputs, example_of_copy, is_copy
from torch._dynamo.regions.outline.graph_view import inputs_of
from torch._dynamo.regions.outline.names import GivenNames, name_outside
from torch._dynamo.regions.outline.symbols import taken_as
from torch._higher_order_ops.region_autocast import enter, is_entered, leave
from torch._higher_order_ops.region_metadata import COPIED, OUTLINED
from torch.fx.operator_facts import is_body


class RegionInvariantError(AssertionError):
    """A pre- or postcondition of outlining does not hold; raised under lint only."""


class Outliner:
    """Replaces groups of identical regions by calls, and installs their bodies in a frame's output."""

    def __init__(
        self,
        tracker: GraphRegionTracker,
        install: Callable[[str, torch.fx.GraphModule], str],
        inside: dict[Node, str] | None = None,
    ) -> None:
        """``install(name, body)`` adds a body to the frame's output, and returns the name under which it is installed.

        ``inside``: names of nodes inside the regions, where known.
        """
        self.tracker = tracker
        self._install = install
        self.inside = {} if inside is None else inside
        # name under which a body is installed -> the body
        self.bodies: dict[str, torch.fx.GraphModule] = {}
        # key of a node -> its integer, for all graphs of the frame.
        self.numbers: dict[Hashable, int] = {}
        # (what a body is, the indices that it returns, how deep it is called) -> its name.
        self.names: dict[Hashable, str] = {}
        # result of a call -> the program's name of it.
        self.given: GivenNames = {}
        # name of a body -> indices of the operands whose copies it returns: see copies.py.
        self.copied: dict[str, list[int]] = {}
        # body -> its operators; and, of those that the program does not call, where the regions were found.
        self.sizes: dict[str, int] = {}
        self.found: dict[str, list[str]] = {}

    def check(self, graph: torch.fx.Graph, group: list[Region], indices: list[int], body: torch.fx.Graph) -> None:
        """Under lint, checks that calls of ``body``, which returns ``indices``, may replace ``group``."""
        if config.graph_deduplication_lint:
            _check_regions(graph, self.tracker, group, indices)
            for region in group:
                _check_body(body, region, inputs_of(region), indices, self.tracker.bodies.key)

    def install(
        self, whole: Hashable, body: torch.fx.Graph, written: list[int], copied: list[int], options: Any = None
    ) -> str:
        """Installs ``body`` under the key ``whole`` and returns its name. The body may call others that are installed.

        ``written``: indices of the operands that the body writes to; ``copied``: of those whose copies it returns.
        """
        called = {str(n.target): self._named(n) for n in body.find_nodes(op="get_attr")}
        module = torch.fx.GraphModule({}, torch.fx.Graph() if called else body)
        if called:
            # Setting ``graph`` recompiles the module with the submodules that it has by then, which are compiled.
            module.graph = body
            for each, inner in called.items():
                module.add_module(each, inner)
        module.meta[OUTLINED], module.meta[COPIED] = tuple(written), tuple(copied)
        if options is not None:
            module.meta["nested_region_config"] = options
        name = self.names[whole] = self._install("subgraph", module)
        self.bodies[name], self.copied[name] = module, copied
        return name

    def note_size(self, name: str, region: Region) -> None:
        """Notes of the body ``name`` how many operators it is, with those of the bodies that it calls."""
        self.sizes[name] = sum(map(self.tracker.bodies.size, region))

    def _named(self, node: Node) -> torch.fx.GraphModule:
        """The body that ``node`` stands for: an outlined body, or a body that an operator runs."""
        module = self.bodies.get(str(node.target)) or self.tracker.bodies.module(node)
        if module is None:
            raise RegionInvariantError(f"{node.name} stands for no body")
        return module

    def replace(
        self,
        graph: torch.fx.Graph,
        group: list[Region],
        indices: list[int],
        name: str,
        options: Any = None,
        called_at: Sequence[str | None] = (),
    ) -> None:
        """Replaces the regions of ``group`` by calls of the body ``name``, which returns ``indices``.

        ``called_at``: for regions that the program calls, the stack trace of each call.
        """
        body = None
        if not called_at:  # one get_attr node for all calls, as in stock
            with graph.inserting_before():
                body = graph.get_attr(name)
        for region, stack_trace in itertools.zip_longest(group, called_at):
            self._replace(graph, region, indices, name, call_meta(region[-1], options, stack_trace), body)
            if config.graph_deduplication_lint:
                graph.lint()

    def _replace(
        self,
        graph: torch.fx.Graph,
        region: Region,
        indices: list[int],
        name: str,
        meta: dict[str, Any],
        body: Node | None,
    ) -> None:
        """Puts a call of a body in the place of a region's last node, and erases the region."""
        results = [region[index] for index in indices]
        with graph.inserting_before(region[-1].next):
            metas = [dict(r.meta) for r in results]
            named = [name_outside(result, self.inside) for result in results] if body is None else []
            outside = self.call(graph, name, inputs_of(region), metas, meta, named, body)
        for result, outer in zip(results, outside, strict=True):
            result.replace_all_uses_with(outer, delete_user_cb=_not_in(region))
        attributes = {o for node in region for o in node.all_input_nodes if is_body(o)}
        for node in reversed(region):
            graph.erase_node(node)
        for attribute in attributes:
            if not attribute.users:
                graph.erase_node(attribute)

    def call(
        self,
        graph: torch.fx.Graph,
        name: str,
        operands: list[Node],
        result_metas: list[dict[str, Any]],
        meta: dict[str, Any],
        named: Sequence[str | None] = (),
        body: Node | None = None,
    ) -> list[Node]:
        """Emits a call of the body ``name`` where ``graph`` inserts; returns a node for each result.

        ``named``: the program's names of the results. ``body``: the ``get_attr`` node of the body, if one exists.
        """
        if body is None:
            body = graph.get_attr(name)
            body.meta = {k: v for k, v in meta.items() if k == "stack_trace"}
        written = [operands[index] for index in self.copied[name]]
        taken = [*operands]
        for index in self.tracker.copied.of(operands) if self.tracker.copied is not None else ():
            if index not in self.copied[name]:  # Note [A call saves what it took]
                (taken[index],) = copy_inputs(graph, [operands[index]])
        call = graph.call_function(torch.ops.higher_order.invoke_subgraph, (body, name, *taken))
        examples = [*(m["example_value"] for m in result_metas), *map(example_of_copy, written)]
        call.meta = {**meta, "example_value": tuple(examples)}
        for index in self.bodies[name].meta[OUTLINED]:
            self.tracker.add_node_mutation(call, 1 + index)  # the body comes before the operands
        results = []
        for k, (result_meta, given) in enumerate(itertools.zip_longest(result_metas, named)):
            results.append(graph.call_function(operator.getitem, (call, k)))
            results[-1].meta = result_meta
            if "stack_trace" in meta:
                result_meta["stack_trace"] = meta["stack_trace"]
            if named:
                self.given[results[-1]] = given
        for k, operand in enumerate(written, len(results)):
            copy = graph.call_function(operator.getitem, (call, k))
            copy.meta = {**meta, "example_value": examples[k]}
            copy_back(graph, operand, copy)
        return results


def used_outside(group: Iterable[Region], also: Container[Node] = ()) -> list[int]:
    """Indices in a region whose values, in any region of the group, are used outside it or are in ``also``."""
    indices: set[int] = set()
    for region in group:
        inside = set(region)
        indices.update(i for i, n in enumerate(region) if n in also or not inside.issuperset(n.users))
    return sorted(indices)


def make_body(
    region: Region,
    indices: list[int],
    copied: Sequence[int],
    called: bool = False,
    autocasts: Sequence[tuple[Any, ...]] = (),
) -> tuple[torch.fx.Graph, dict[Node, Node]]:
    """The graph of a region: its inputs are placeholders, and the values at ``indices`` are returned as a tuple.

    Behind these it returns the inputs at ``copied``, of which it makes copies first. It enters ``autocasts`` then, and
    leaves them last. Placeholders are named as in stock: after the inputs if ``called`` (the program calls the region),
    otherwise by number.

    Also returns the map from the nodes of the region and its inputs to the nodes of the body.
    """
    body = torch.fx.Graph()
    copy: dict[Node, Node] = {}
    inputs = inputs_of(region)
    for k, outer in enumerate(inputs):
        copy[outer] = body.placeholder(outer.name if called else f"arg{k}")
        if "example_value" in outer.meta:
            copy[outer].meta["example_value"] = outer.meta["example_value"]

    def stands_for(operand: Node) -> Node:
        if is_body(operand) and operand not in copy:
            copy[operand] = body.node_copy(operand)
        return copy.get(operand) or copy[taken_as(operand)]

    written = [inputs[k] for k in copied]
    copy.update(zip(written, copy_inputs(body, [copy[outer] for outer in written]), strict=True))
    entered = enter(body, autocasts)
    for node in region:
        copy[node] = body.node_copy(node, stands_for)
    leave(body, entered)
    body.output(tuple(copy[outer] for outer in (*(region[index] for index in indices), *written)))
    return body, copy


def call_meta(last: Node, options: Any, stack_trace: str | None = None) -> dict[str, Any]:
    """The metadata of a call of a region that ends with ``last``, without the example value.

    ``stack_trace`` is that of the program's call. A region found by search has that of its last node.
    """
    meta = {k: v for k, v in last.meta.items() if k in ("stack_trace", "creation_timestamp")}
    if stack_trace is not None:
        meta["stack_trace"] = stack_trace
    if options is not None:
        meta["custom"] = {"nested_region_config": options}
    return meta


def _not_in(region: Region) -> Callable[[Node], bool]:
    inside = set(region)
    return lambda user: user not in inside


def _check_regions(graph: torch.fx.Graph, tracker: GraphRegionTracker, group: list[Region], indices: list[int]) -> None:
    """Recomputes the preconditions of outlining ``group`` from the current graph."""
    view = tracker.view(graph)
    signatures = set()
    for region in group:
        start = view.position[region[0]]
        end = start + len(region)
        if view.nodes[start:end] != region:
            raise RegionInvariantError(f"region {region} is not a run of program order")
        if broken := view.offences(start, end, indices):
            names = [view.nodes[i].name for i in sorted(broken)]
            raise RegionInvariantError(f"{names} may not cross the boundary of region {region}")
        signatures.add(view.signature(start, end))
    if len(signatures) != 1:
        raise RegionInvariantError(f"regions {group} differ in wiring")


def _check_body(
    body: torch.fx.Graph,
    region: Region,
    inputs: list[Node],
    indices: list[int],
    key: Callable[[Node], Hashable],
) -> None:
    """Checks that a call of ``body`` on ``inputs`` does what ``region`` does, node by node.

    ``key(node)`` is the key of the body that ``node`` stands for.
    """
    stand_in = dict(zip(body.find_nodes(op="placeholder"), inputs, strict=True))
    copies = [n for n in body.nodes if is_copy(n)]
    stand_in.update((n, stand_in[n.all_input_nodes[0]]) for n in copies)
    inner = [n for n in body.nodes if not (n.op in ("placeholder", "output") or is_entered(n) or is_body(n))]
    inner = inner[len(copies) :]
    inside = set(region)
    for ours, theirs in zip(inner, region, strict=True):
        mapped = torch.fx.map_arg((ours.args, ours.kwargs), lambda n: None if is_body(n) else stand_in[n])
        wanted = torch.fx.map_arg(
            (theirs.args, theirs.kwargs), lambda n: None if is_body(n) else n if n in inside else taken_as(n)
        )
        graphs, others = ([key(o) for o in n.all_input_nodes if is_body(o)] for n in (ours, theirs))
        same = (ours.op, ours.target) == (theirs.op, theirs.target) and graphs == others
        if not same or repr(mapped) != repr(wanted):
            raise RegionInvariantError(f"{ours.format_node()} stands for {theirs.format_node()}")
        stand_in[ours] = theirs
    returned = [stand_in[n] for n in body.output_node().args[0]]  # type: ignore[union-attr]
    if returned != [*(region[index] for index in indices), *(stand_in[n] for n in copies)]:
        raise RegionInvariantError(f"the body returns {returned}, wanted {indices} of {region}")
