"""Overlay of torch.fx.graph: what a node's arguments hold is looked at without the machinery of pytrees.

Stock flattens the arguments of each node that is made, copies included, to warn of a symbolic number among them. A
call of a region has as many arguments as its boundary is wide, and is copied a dozen times by the partitioner alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import Argument, Node, Target

from torch_regions.overlay import replaces, stock


_OPERATORS = frozenset({"call_function", "call_method", "call_module"})
_LEAVES = frozenset({Node, int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout})


def _holds_no_symbols(value: Any) -> bool:
    """Whether a value is known to be a leaf, or made of leaves, that stock does not warn of."""
    if type(value) in _LEAVES:
        return True
    return isinstance(value, (tuple, list)) and all(map(_holds_no_symbols, value))


@replaces("Graph.create_node")
def create_node(
    self: Any,
    op: str,
    target: Target,
    args: tuple[Argument, ...] | None = None,
    kwargs: dict[str, Argument] | None = None,
    name: str | None = None,
    type_expr: Any | None = None,
) -> Node:
    make = stock("torch.fx.graph:Graph.create_node")
    # A hook is to see the node as it will be.
    hooks = getattr(self.owning_module, "_create_node_hooks", None)
    if hooks or kwargs or not args or op not in _OPERATORS or not _holds_no_symbols(args) or type(args) is not tuple:
        return make(self, op, target, args, kwargs, name, type_expr)  # type: ignore[no-any-return]
    node: Node = make(self, op, target, None, None, name, type_expr)
    node._update_args_kwargs(args, node.kwargs)
    return node
