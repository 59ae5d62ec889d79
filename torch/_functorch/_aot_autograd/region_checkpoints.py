"""Saves the values that lead from one checkpoint to a checkpoint in a region, as in the graph without regions.

Note [A checkpoint ends where a call begins]
If one checkpoint takes what another returns, the partitioner saves that value. Otherwise the backward of the second
would recompute the first one too early, and the memory of both would be held at once. The partitioner recognizes such a
value by the ``recompute`` marks of the operators on both sides. If the second checkpoint is in a body, its operators
are not in the graph around the call. So the value is marked here, if the body passes it to an operator that must be
recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch._functorch.partitioners import must_recompute
from torch._higher_order_ops.region_metadata import calls_with_bodies
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy


def _backward_calls(joint_gm: GraphModule) -> Iterator[tuple[Node, GraphModule]]:
    """The calls of joint bodies, and the bodies. A joint call takes the operands of its forward call first."""
    for call, _, body in calls_with_bodies(joint_gm, "bw_"):
        yield call, body


def save_between_checkpoints(joint_gm: GraphModule) -> None:
    """Marks the values that lead from one checkpoint to another, in a joint graph whose bodies are joint graphs."""
    begins: dict[GraphModule, list[int]] = {}
    for call, body in _backward_calls(joint_gm):
        if body not in begins:
            taken = enumerate(body.graph.find_nodes(op="placeholder"))
            begins[body] = [i for i, node in taken if any(map(must_recompute, node.users))]
        operands = call.args[2:]
        for index in begins[body]:
            operand = operands[index]
            if isinstance(operand, Node) and must_recompute(operand):
                operand.meta["recompute"] = CheckpointPolicy.MUST_SAVE
