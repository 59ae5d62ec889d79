"""Overlay of torch._inductor.constant_folding: takes what a node reads from the node, without walking its arguments."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch.fx import Node

from torch_regions.overlay import replaces


@replaces("ConstantFolder.node_to_last_non_output_use")
def node_to_last_non_output_use(self: Any) -> dict[Node, list[Node]]:
    *nodes, output = self.module.graph.nodes
    read_last_by: dict[Node, list[Node]] = defaultdict(list)
    read_later: set[Node] = set()
    for node in reversed(nodes):
        last_reads = [operand for operand in node.all_input_nodes if operand not in read_later]
        read_later.update(last_reads)
        if list(node.users) == [output]:
            last_reads.append(node)
        if last_reads:
            read_last_by[node] = last_reads
    return read_last_by
