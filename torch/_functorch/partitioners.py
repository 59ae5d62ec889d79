"""Overlay of torch._functorch.partitioners: gives the min-cut solver no values whose saving is certain."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch import config
from torch._functorch.partitioners import (
    AOT_PARTITIONER_DEBUG,
    MinCutOptions,
    NodeInfo,
    _is_primal,
)
from torch.fx import Graph, Node
from torch.utils._ordered_set import OrderedSet

from torch_regions.overlay import replaces, stock


@replaces
def solve_min_cut(
    joint_graph: Graph,
    node_info: NodeInfo,
    min_cut_options: MinCutOptions,
    dont_ban: OrderedSet[Node] | None = None,
) -> tuple[list[Node], OrderedSet[Node]]:
    from torch._functorch._aot_autograd.region_cuts import Settled

    solve = stock("torch._functorch.partitioners:solve_min_cut")
    # Under other options the backward may run a call again, and views are not saved.
    usual = min_cut_options.ban_if_not_in_allowlist and not dont_ban and not config.recompute_views
    calls = joint_graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    if not usual or not calls or AOT_PARTITIONER_DEBUG:
        return solve(joint_graph, node_info, min_cut_options, dont_ban)
    # See Note [A cut that needs no solver]
    settled = Settled(joint_graph, node_info, _is_primal)
    rest: Any = settled.rest()
    if rest is None:
        return solve(joint_graph, node_info, min_cut_options, dont_ban)
    saved, banned = solve(rest, node_info, min_cut_options, dont_ban)
    order = {node: index for index, node in enumerate(joint_graph.nodes)}
    return sorted([*saved, *settled.saved], key=order.__getitem__), banned
