"""Passes to the bodies of regions the seeds of the random numbers that they draw, under Inductor.

Note [A body is given its seeds]
Inductor makes the numbers of a draw from a seed. A graph takes all seeds of a device at once (``inductor_seeds``), in
the order of its draws. A body that took seeds of its own would take them when it runs: later than the graph around it,
and as several small draws, which on a GPU are other numbers than one large draw. So a body takes none. Its seeds are an
operand, and each call passes a slice of those of the graph. Thus draw number i of the program has the seed that it has
without regions, and the forward can save the seeds, of which the backward makes the numbers again.

- Before a joint body is partitioned, its seeds become its last primal (``take_seeds``).
- Each call of the partitioned forward is given seeds (``give_seeds``); a call of a body in a body too.
- When Inductor's passes have replaced the draws of the graph around the calls, all its seeds are taken at once
  (``merge_seeds``), in the order of the graph.

The body of another operator (a branch of ``cond``) takes its own seeds, as without regions. Other backends, and
Inductor with ``fallback_random``, run a draw in its place, and bodies are called in the order of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.region_metadata import calls_with_bodies
from torch.fx import GraphModule, Node
from torch.fx.operator_facts import draws_random_numbers
from torch.fx.passes.shape_prop import _extract_tensor_metadata


# Key in the ``meta`` of a node: the number of seeds that it stands for. It is the operand of a body that takes seeds,
# or the node around a call that passes them.
SEEDS = "region_seeds"
_OPERATORS = ("call_function", "call_method")
# Keys of the partitioner's in the ``meta`` of a node that a checkpoint runs again.
_OF_A_CHECKPOINT = ("recompute", "ac_graph_id")
# Key in the ``meta`` of each node of a joint body, from before it is partitioned until its passes begin. The passes are
# given a copy of the graph, with the metadata of its nodes. So an exception at any moment leaves nothing behind.
_IN_JOINT_BODY = "region_in_joint_body"


def note_joint_bodies(joint: GraphModule) -> None:
    """Notes in the joint bodies that ``joint`` calls that they are such: they are partitioned next."""
    for _, _, body in calls_with_bodies(joint, "bw_"):
        for node in body.graph.nodes:
            node.meta[_IN_JOINT_BODY] = True


def is_joint_body(gm: GraphModule) -> bool:
    """Whether ``gm``, whose passes begin, is the joint body of a region.  What was noted for this is taken off."""
    noted = [node for node in gm.graph.nodes if node.meta.pop(_IN_JOINT_BODY, False)]
    return bool(noted)


def _inductor_seeds() -> Any:
    from torch._inductor import inductor_prims  # only Inductor's graphs have seeds, so it is there

    return inductor_prims.seeds


def _takers(gm: GraphModule) -> list[Node]:
    """The nodes of ``gm`` that take seeds of a device."""
    return gm.graph.find_nodes(op="call_function", target=_inductor_seeds())


def draws(body: GraphModule) -> bool:
    """Whether ``body`` draws random numbers, in itself or in a body that it calls."""
    graphs = [part.graph for part in body.modules() if isinstance(part, GraphModule)]
    return any(draws_random_numbers(n) for graph in graphs for n in graph.nodes if n.op in _OPERATORS)


def _note(node: Node, make: Callable[[], torch.Tensor], mode: Any) -> None:
    with mode:
        node.meta["val"] = make()
    node.meta["tensor_meta"] = _extract_tensor_metadata(node.meta["val"])


def take_seeds(body: GraphModule) -> None:
    """Makes the seeds that ``body`` takes an operand, the last one that is no tangent."""
    for taker in _takers(body):
        primals = [n for n in body.graph.find_nodes(op="placeholder") if "tangents" not in str(n.target)]
        first = next(iter(body.graph.nodes))
        with body.graph.inserting_after(primals[-1]) if primals else body.graph.inserting_before(first):
            operand = body.graph.placeholder(f"{SEEDS}_{len(primals)}")
        operand.meta = {**taker.meta, SEEDS: taker.args[0]}
        # In a checkpoint, what takes the seeds is run again. An operand is not: it is saved.
        for tag in _OF_A_CHECKPOINT:
            operand.meta.pop(tag, None)
        taker.replace_all_uses_with(operand)
        body.graph.erase_node(taker)
        body.recompile()


def example_of_seeds(operand: Node) -> torch.Tensor:
    """An example of the seeds that a body takes: a slice that begins anywhere in those of the graph.

    So a GPU's kernels do not count on an aligned address.
    """
    val = operand.meta["val"]
    with val.fake_mode:
        return val.new_empty([len(val) + 1])[1:]  # type: ignore[no-any-return]


def give_seeds(gm: GraphModule) -> None:
    """Passes seeds to the calls in ``gm`` whose bodies take some and that pass none yet.

    Each call takes them by a node of its own, until ``merge_seeds``.
    """
    given = False
    for call, _, body in calls_with_bodies(gm):
        operands = body.graph.find_nodes(op="placeholder")[len(call.args) - 2 :]
        for operand in operands:
            if SEEDS not in operand.meta:
                break
            val = operand.meta["val"]
            with gm.graph.inserting_before(call):
                seeds = gm.graph.call_function(_inductor_seeds(), (operand.meta[SEEDS], val.device))
            seeds.meta = {SEEDS: operand.meta[SEEDS]}
            _note(seeds, lambda val=val: torch.empty_like(val), val.fake_mode)  # type: ignore[misc]
            call.args = (*call.args, seeds)
            if inputs := call.meta.get("eager_input_vals"):
                call.meta["eager_input_vals"] = ((*inputs[0], seeds.meta["val"]), inputs[1])
            given = True
    if given:
        gm.recompile()


def merge_seeds(gm: GraphModule) -> None:
    """Takes all seeds in ``gm`` of one device at once, in the order of their use, if some are passed to calls.

    ``gm``: a graph in which Inductor has replaced its own draws.
    """
    takers = _takers(gm)
    passed = [node for node in takers if SEEDS in node.meta]
    for device in {node.args[1] for node in passed}:
        _merge(gm, [node for node in takers if node.args[1] == device])
    if passed:
        gm.graph.lint()
        gm.recompile()


def _merge(gm: GraphModule, takers: list[Node]) -> None:
    graph = gm.graph
    # Where seeds are used -> how many: one by a draw of this graph, and those of a call together.
    uses: dict[Node, int] = {}
    for taker in takers:
        uses.update({taker: taker.meta[SEEDS]} if SEEDS in taker.meta else dict.fromkeys(taker.users, 1))
    order = {node: index for index, node in enumerate(graph.nodes)}
    users = sorted(uses, key=order.__getitem__)
    mode = takers[0].meta["val"].fake_mode
    with graph.inserting_before(min(takers, key=order.__getitem__)):
        every = graph.call_function(_inductor_seeds(), (sum(uses.values()), takers[0].args[1]))
    like = takers[0].meta["val"]
    _note(every, lambda: like.new_empty([sum(uses.values())]), mode)
    begin = 0
    for user in users:
        end = begin + uses[user]
        if SEEDS in user.meta:
            with graph.inserting_before(user):
                part = graph.call_function(torch.ops.aten.slice.Tensor, (every, 0, begin, end))
            _note(part, lambda b=begin, e=end: every.meta["val"][b:e], mode)  # type: ignore[misc]
            user.replace_all_uses_with(part)
        else:
            user.args = (every, begin)
        begin = end
    for taker in takers:
        graph.erase_node(taker)
