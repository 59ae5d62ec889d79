"""Which values around calls of partitioned regions are saved for the backward, as far as this needs no min-cut solver.

Note [A cut that needs no solver]
What a partitioned region saves was decided when its body was partitioned. Stock still gives the graph around the calls
to a max-flow solver, at a cost that grows with all values that cross a boundary. For most of them the answer is known
beforehand. The forward call of a region is never run again in the backward, so its results can only be saved; the same
holds for the inputs of the graph. If the backward reads such a value, every finite cut goes through it, whatever the
rest of the cut is.

Such a *settled* value is removed from the network. All cuts become cheaper by the same amount, so the cheapest stay the
cheapest, and the cut nearest to the backward, which the solver returns, stays the nearest. Nodes without a remaining
path from the source or to the sink are removed with it. A value that could be fused with one of its readers stays,
because the heuristics that forbid a recomputation follow such chains.
"""

from __future__ import annotations

import operator
from collections.abc import Container
from typing import Any

import torch
from torch.fx import Graph, Node


_CALL = torch.ops.higher_order.invoke_subgraph
# Metadata for which the solver has rules of its own: what the user wants recomputed, and what is written to an input
# after the forward (from 2.15 on).
_UNDECIDED = frozenset({"recompute", "aot_runtime_epilogue_input_mutation"})


class PartOfGraph:
    """Some nodes of a graph, for a reader that only iterates over ``nodes``."""

    def __init__(self, graph: Graph, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.owning_module = graph.owning_module


def _is_call(node: Node) -> bool:
    return node.target is _CALL and "recompute" not in node.meta


class Settled:
    """The values of a joint graph that are certain to be saved, and the rest of the graph for the solver."""

    def __init__(self, graph: Graph, node_info: Any, is_primal: Any) -> None:
        self._graph = graph
        self._info = node_info
        self._is_primal = is_primal
        self._in_backward: Container[Node] = node_info.tangents_closure & node_info.required_bw_nodes
        self.saved = [node for node in graph.nodes if self._is_settled(node)]

    def rest(self) -> PartOfGraph | None:
        """The part of the graph that the solver must consider; None if it should consider all of it."""
        witness = next((node for node in self.saved if node.op == "placeholder"), None)
        if witness is None:
            return None
        # One settled value stays, so that the network has a source and a sink.
        self.saved.remove(witness)
        settled = set(self.saved)
        return PartOfGraph(self._graph, [node for node in self._graph.nodes if not self._is_idle(node, settled)])

    def _is_settled(self, node: Node) -> bool:
        if node in self._info.required_bw_nodes or not _UNDECIDED.isdisjoint(node.meta):
            return False
        if type(node.meta.get("val")) is not torch._subclasses.FakeTensor or not self._only_saved(node):
            return False
        read = False
        for user in node.users:
            if user in self._in_backward:
                read = True
            elif not _is_call(user) and user.op != "output":
                return False
        return read

    def _only_saved(self, node: Node) -> bool:
        """Whether ``node`` exists in the forward and will not be recomputed."""
        if node.op == "placeholder":
            return bool(self._is_primal(node))
        made_by: Any = node.args[0] if node.target is operator.getitem else None
        return isinstance(made_by, Node) and _is_call(made_by) and self._info.is_required_fw(made_by)

    def _is_idle(self, node: Node, settled: set[Node]) -> bool:
        """Whether no flow between undecided values can go through ``node``."""
        if node in settled:
            return True
        if node.op == "get_attr":
            return all(map(_is_call, node.users))
        if node in self._in_backward:
            # Paths end in the backward, and no remaining path leads to this node.
            return all(
                o in settled or o in self._in_backward or (o.op == "get_attr" and all(map(_is_call, o.users)))
                for o in node.all_input_nodes
            )
        return _is_call(node) and self._info.is_required_fw(node) and all(user in settled for user in node.users)
