"""Autocast that the program enters around operators that become a body.

Note [A body enters the autocast of its calls]
AOTAutograd traces the forward of a graph under the autocast that the program enters, and the backward after the program
has left it. For the operators of a body, the autocast of the backward may differ from that of the forward, but the
joint graph of a body is traced under one state: the one that the backward finds. So a body enters, at its start, every
autocast that is open where its region begins, and leaves them at its end. In a call this changes nothing. In a joint
graph, forward operators find the autocast of the calls, and their gradients find that of the flat graph's backward.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._functorch.config
import torch.fx
from torch._dynamo.regions.outline.casts import asks_to_keep


Node = torch.fx.Node


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


def autocasts_of(first: Node, began_with: dict[str, torch.dtype]) -> list[tuple[str, torch.dtype | None, bool, Any]]:
    """The autocasts that a body enters if its region begins with ``first``, as arguments of ``_enter_autocast``.

    ``began_with``: device -> dtype of the autocast that the frame began in.
    """
    entered: dict[str, tuple[torch.dtype | None, bool]] = {}
    backward: Any = torch._functorch.config.backward_pass_autocast
    of_backward = set() if isinstance(backward, str) else {each["device_type"] for each in backward}
    if backward != "same_as_forward":
        # The backward is traced under another autocast even where the program enters none of its own.
        entered = dict.fromkeys(sorted(of_backward), (None, False))
        entered.update((device, (dtype, True)) for device, dtype in began_with.items())
    kept = None
    for node in open_autocasts(first):
        if (keep := asks_to_keep(node)) is not None:
            kept = keep
        device, dtype, enabled = _arguments(node)
        if dtype is None and device in entered:
            dtype = entered[device][0]
        entered[device] = (dtype, enabled)
    cache = False if kept else None  # Note [A body keeps no casts]
    return [(d, dtype, on, cache) for d, (dtype, on) in entered.items() if on or d in began_with or d in of_backward]


def _arguments(node: Node) -> tuple[str, torch.dtype | None, bool]:
    device, dtype, enabled = (*node.args, None, True)[:3] if len(node.args) < 3 else node.args[:3]
    return device, dtype, bool(enabled)  # type: ignore[return-value]
