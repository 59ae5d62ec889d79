"""What a checkpoint returns to a region that has one too is saved, as in the graph without regions.

Note [A checkpoint ends where a call begins]
Where one checkpoint takes what another one returns, the partitioner saves that value: else the backward of the second
would have the first one computed again before its turn, and the memory of both would be held at once.  It sees that by
the marks of the operators on both sides.  Where the second checkpoint is in a body, the operators on its side are there
and not in the graph, so the value is marked here: if the body gives it to an operator that is to be computed again.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch._functorch.partitioners import must_recompute
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy


def _backward_calls(joint_gm: GraphModule) -> Iterator[tuple[Node, GraphModule]]:
    """The calls of joint bodies, which take the operands of their forward calls first, and the bodies."""
    for call in joint_gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph):
        name, graph = call.args[1], call.args[0]
        if isinstance(name, str) and name.startswith("bw_") and isinstance(graph, Node):
            body = getattr(joint_gm, str(graph.target))
            if isinstance(body, GraphModule):
                yield call, body


def save_between_checkpoints(joint_gm: GraphModule) -> None:
    """Marks the values of a joint graph that end one checkpoint and begin another, where bodies are joint graphs."""
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
