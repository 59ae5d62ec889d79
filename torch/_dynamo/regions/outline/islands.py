"""Autocast that the program enters around operators that become a body.

Note [A body enters the autocast of its calls]
AOTAutograd traces a graph forwards under the autocast that the program enters, and backwards when all of it has been
left. The joint graph of a body is traced backwards: there the state is that which the backward finds, and it has to be
another for the operators of the body. So a body enters what stands open where its region begins, and leaves it at its
end. In a call this changes nothing. In a joint graph, forward operators find the autocast of the calls, and
their gradients that of the flat graph's backward.

Autocast can keep the casts of weights, and use them again until all of it is left. Tracers turn that off, unless the
program itself asks for it (``cache_enabled=True``): then one cast may serve several calls, and its gradient is summed
before it is cast. Operators in such an island are in no region.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch._functorch.config
import torch.fx


Node = torch.fx.Node


def keeping_casts(nodes: Sequence[Node]) -> set[int]:
    """Positions of nodes where the program has asked autocast to keep casts."""
    found: set[int] = set()
    # What was asked for: by autocasts that are open, and by switches that stand alone.
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
    """The calls by which the graph of ``first`` has entered autocast, and not left it, where ``first`` stands."""
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
    """What a body enters whose region begins with ``first``, as arguments of ``_enter_autocast``.

    ``began_with``: device -> dtype of the autocast that the frame began in.
    """
    entered: dict[str, tuple[torch.dtype | None, bool]] = {}
    if torch._functorch.config.backward_pass_autocast != "same_as_forward":
        # Also outside of the program's own autocast, a backward is traced under another one.
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
