"""Autocast that the program enters around operators that become a body.

Note [A body enters the autocast of its calls]
AOTAutograd traces the forward of a graph under the autocast that the program enters, and the backward after the program
has left it. For the operators of a body, the autocast of the backward may differ from that of the forward, but the
joint graph of a body is traced under one state: the one that the backward finds. So a body enters, at its start, every
autocast that is open where its region begins, and leaves them at its end. In a call this changes nothing. In a joint
graph, forward operators find the autocast of the calls, and their gradients find that of the flat graph's backward.

Autocast can cache the casts of weights until all of it is left. Tracers disable that cache, unless the program itself
enables it (``cache_enabled=True``). Then one cast may serve several calls, and its gradient is summed before it is
cast. Operators in such an island are in no region.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch._functorch.config
import torch.fx


Node = torch.fx.Node


def keeping_casts(nodes: Sequence[Node]) -> set[int]:
    """Positions of nodes for which the program has enabled autocast's cache of casts."""
    found: set[int] = set()
    # The settings of the autocasts that are open, and of the switches that stand alone.
    asked: list[tuple[Node, bool]] = []
    for i, node in enumerate(nodes):
        if node.target is torch.amp._enter_autocast and len(node.args) > 3 and node.args[3] is not None:
            asked.append((node, bool(node.args[3])))
        elif node.target is torch.amp._exit_autocast:
            asked = [each for each in asked if each[0] is not node.args[0]]
        elif node.target is torch.set_autocast_cache_enabled:
            asked.append((node, node.args[0] is not False))
        if asked and asked[-1][1]:
            found.add(i)
    return found


def open_autocasts(first: Node) -> list[Node]:
    """The nodes that enter an autocast which is still open at ``first``."""
    left: set[Any] = set()
    found = []
    node = first.prev
    while node.op != "root":
        if node.target is torch.amp._exit_autocast:
            left.add(node.args[0])
        elif node.target is torch.amp._enter_autocast and node not in left:
            found.append(node)
        node = node.prev
    found.reverse()
    return found


def autocasts_of(first: Node, began_with: dict[str, torch.dtype]) -> list[tuple[str, torch.dtype | None, bool, None]]:
    """The autocasts that a body enters if its region begins with ``first``, as arguments of ``_enter_autocast``.

    ``began_with``: device -> dtype of the autocast that the frame began in.
    """
    entered: dict[str, tuple[torch.dtype | None, bool]] = {}
    if torch._functorch.config.backward_pass_autocast != "same_as_forward":
        # The backward is traced under another autocast even where the program enters none of its own.
        entered = {device: (dtype, True) for device, dtype in began_with.items()}
    for node in open_autocasts(first):
        device, dtype, enabled = _arguments(node)
        if dtype is None and device in entered:
            dtype = entered[device][0]
        entered[device] = (dtype, enabled)
    return [(d, dtype, on, None) for d, (dtype, on) in entered.items() if on or d in began_with]


def _arguments(node: Node) -> tuple[str, torch.dtype | None, bool]:
    device, dtype, enabled = (*node.args, None, True)[:3] if len(node.args) < 3 else node.args[:3]
    return device, dtype, bool(enabled)  # type: ignore[return-value]
