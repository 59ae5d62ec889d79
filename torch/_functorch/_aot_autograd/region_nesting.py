"""Pairs the forward and backward calls of regions inside regions, so that these can be partitioned too.

Note [A region inside a region is partitioned first]
The joint body of a region calls the forward of each inner region and, with the same operands and the tangents, the
inner region's *joint* body. Stock leaves it like this: the backward would run the inner forward again. That costs a
recomputation and, if the body draws random numbers, draws new ones, so that a dropout has one mask in the forward and
another in its gradient. If the inner regions are partitioned first, in the same way as the outer ones, the inner
backward reads what the inner forward saved.

Stock pairs calls by an id that a call gets while it is traced. Tracing the outer body once more gives all inner forward
calls the id of the outer call, so the pairs are found again here: a backward call begins with the operands of its
forward call, and has the same sequence number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._higher_order_ops.invoke_subgraph import _next_invoke_subgraph_call_id
from torch._higher_order_ops.missing_gradients import name_of_forward
from torch._higher_order_ops.region_metadata import calls_with_bodies
from torch.fx import GraphModule, Node


def _calls(gm: GraphModule, prefix: str) -> Iterator[Node]:
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph):
        if isinstance(node.args[1], str) and node.args[1].startswith(prefix):
            yield node


def _stamp(node: Node, call_id: int) -> None:
    node.meta["custom"] = {**(node.meta.get("custom") or {}), "call_id": call_id}


def _forward_of(backward: Node, forwards: list[Node]) -> Node | None:
    identifier = name_of_forward(str(backward.args[1]).removeprefix("bw_").rpartition("_")[0])
    found = [
        fw for fw in forwards if fw.args[1] == f"fw_{identifier}" and backward.args[2 : len(fw.args)] == fw.args[2:]
    ]
    number = backward.meta.get("seq_nr")
    same = [fw for fw in found if number is not None and fw.meta.get("seq_nr") == number]
    found = same or found
    return found[0] if len(found) == 1 else None


def pair_inner_calls(body: GraphModule) -> bool:
    """Gives the calls inside a joint body ids that pair them. Returns False if nothing can be partitioned."""
    forwards, backwards = list(_calls(body, "fw_")), list(_calls(body, "bw_"))
    pairs: dict[Node, Any] = {bw: _forward_of(bw, forwards) for bw in backwards}
    if not pairs or None in pairs.values() or len(set(pairs.values())) < len(pairs):
        return False
    for fw in forwards:
        _stamp(fw, _next_invoke_subgraph_call_id())
    for bw, fw in pairs.items():
        _stamp(bw, fw.meta["custom"]["call_id"])
    return True


def inner_bodies(joint_gm: GraphModule) -> Iterator[GraphModule]:
    """The joint bodies in `joint_gm` that contain regions, with their calls paired for partitioning."""
    seen = set()
    for _, name, body in calls_with_bodies(joint_gm, "bw_"):
        if name not in seen:
            seen.add(name)
            if pair_inner_calls(body):
                yield body
