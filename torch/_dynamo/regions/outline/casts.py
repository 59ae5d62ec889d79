"""Casts of weights that autocast keeps.

Note [A body keeps no casts]
Autocast can cache the cast of a weight until all of autocast is left. Tracers disable that cache, unless the program
itself enables it (``cache_enabled=True``, as accelerate does). Then one cast may serve several reads of the weight, and
the gradients of these reads are summed before the sum is cast back. A body is traced apart from the graph around it:
it would neither find a cast nor leave one. So a body enters autocast with the cache off, and an operator may be in a
region only if that changes nothing: of each weight that it casts, no other operator makes or uses a cast. Tied weights,
and the weights of a layer that is called twice, stay outside of bodies.

Autocast in which the frame began may hold casts from before the frame, and a switch of the cache alone does not tell
where the cache ends. There, no operator is in a region. Neither is a call that enables the cache.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import torch
import torch.fx
from torch.fx.operator_facts import aten_overloads, is_body, is_users_operator, runs_its_bodies, target_name


Node = torch.fx.Node
# A ``get_attr`` node -> the graph that it stands for.
Body = Callable[[Node], torch.fx.GraphModule | None]


class Casts(enum.Enum):
    """How often autocast casts one operand of an operator to a lower precision."""

    NEVER = enum.auto()
    ONCE = enum.auto()  # or never
    UNKNOWN = enum.auto()


# Compositions, and functions that are not named as the operator that they call.
_BY_NAME = {
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"), Casts.NEVER),
    **dict.fromkeys(("to", "float", "double", "half", "bfloat16", "reshape", "expand_as", "chunk"), Casts.NEVER),
    **dict.fromkeys(("split", "getattr", "truediv", "iadd", "isub", "imul", "itruediv"), Casts.NEVER),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), Casts.ONCE),
}
# What the above says was found out for these devices.
_DEVICES = ("cpu", "cuda")


def keeping_casts(nodes: Sequence[Node]) -> dict[int, Node]:
    """Positions of nodes for which the program has enabled autocast's cache of casts -> the node that enabled it."""
    found: dict[int, Node] = {}
    # The settings of the autocasts that are open, and of the switches that stand alone.
    asked: list[tuple[Node, bool]] = []
    for i, node in enumerate(nodes):
        if (keep := asks_to_keep(node)) is not None:
            asked.append((node, keep))
        elif node.target is torch.amp._exit_autocast:
            asked = [each for each in asked if each[0] is not node.args[0]]
        elif node.target is torch.set_autocast_cache_enabled:
            asked.append((node, node.args[0] is not False))
        if asked and asked[-1][1]:
            found[i] = asked[-1][0]
    return found


def asks_to_keep(node: Node) -> bool | None:
    """Whether ``node`` enters an autocast that enables the cache of casts; None if it leaves the cache as it is."""
    if node.target is not torch.amp._enter_autocast or len(node.args) < 4 or node.args[3] is None:
        return None
    return bool(node.args[3])


def shares_cast(node: Node, body: Body) -> bool:
    """Whether autocast, where it keeps casts, may use the cast that ``node`` makes of an operand once more."""
    for operand in filter(_is_kept, node.all_input_nodes):
        how = _casts_of(node, operand, body)
        if how is Casts.UNKNOWN or (how is Casts.ONCE and _is_cast_elsewhere(operand, node, body)):
            return True
    return False


def call_shares_cast(call: Node, body: Body) -> bool:
    """The same for ``call`` of a region that is to share a body in which no operator shares a cast."""
    kept = filter(_is_kept, call.all_input_nodes)
    return any(_times(call, operand) > 1 or _is_cast_elsewhere(operand, call, body) for operand in kept)


def _is_kept(operand: Node) -> bool:
    """Whether autocast would keep a cast of ``operand``: of a leaf in float32 that requires grad, and is no view.

    AOTAutograd makes such a leaf of each input.
    """
    value = operand.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32 or not value.requires_grad:
        return False
    return operand.op in ("placeholder", "get_attr") or (not value._is_view() and value.is_leaf)


def _is_cast_elsewhere(operand: Node, here: Node, body: Body) -> bool:
    """Whether another node than ``here`` may cast ``operand``."""
    return any(_casts_of(user, operand, body) is not Casts.NEVER for user in operand.users if user is not here)


def _times(node: Node, operand: Node) -> int:
    """How often ``operand`` is an argument of ``node``."""
    operands: list[Node] = []
    torch.fx.map_arg((node.args, node.kwargs), operands.append)
    return operands.count(operand)


def _casts_of(node: Node, operand: Node, body: Body) -> Casts:
    value = operand.meta.get("example_value")
    if node.op not in ("call_function", "call_method") or is_users_operator(node):
        return Casts.UNKNOWN
    if value is None or value.device.type not in _DEVICES:
        return Casts.UNKNOWN
    how = _casts_in_body(node, operand, body) if runs_its_bodies(node) else _casts_by_name(target_name(node))
    return Casts.UNKNOWN if how is Casts.ONCE and _times(node, operand) > 1 else how


def _casts_in_body(node: Node, operand: Node, body: Body) -> Casts:
    """``Casts`` of an operator that runs one body, which takes the operator's other operands in order."""
    graph, *operands = node.args
    module = body(graph) if isinstance(graph, Node) and is_body(graph) else None
    taken = module.graph.find_nodes(op="placeholder") if module is not None else []
    if len(taken) != len(operands) or operand not in operands:
        return Casts.UNKNOWN
    inside = taken[operands.index(operand)]
    casts = [how for user in inside.users if (how := _casts_of(user, inside, body)) is not Casts.NEVER]
    return Casts.UNKNOWN if len(casts) > 1 else casts[0] if casts else Casts.NEVER


def _casts_by_name(name: str) -> Casts:
    """``Casts`` of aten's operators called ``name``, by what the dispatcher knows of them.

    Autocast intercepts an operator that has a kernel for it. An operator that is composed of others may cast in them.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    overloads = [o for o in aten_overloads(name) if not any(argument.is_out for argument in o._schema.arguments)]
    found = {_casts_of_overload(overload.name()) for overload in overloads}
    return next((how for how in (Casts.UNKNOWN, Casts.ONCE) if how in found), Casts.NEVER) if found else Casts.UNKNOWN


def _casts_of_overload(name: str) -> Casts:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if not torch._C._dispatch_has_kernel(name):
        return Casts.NEVER  # on numbers and lists
    intercepted = [has(name, key) for key in ("AutocastCPU", "AutocastCUDA")]
    if has(name, "CompositeImplicitAutograd"):
        return Casts.ONCE if all(intercepted) else Casts.UNKNOWN
    return Casts.ONCE if any(intercepted) else Casts.NEVER
