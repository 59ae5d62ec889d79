"""Overlay of torch.fx.graph: copies a node without flattening its arguments as a pytree.

Stock flattens the arguments of each node that is made, copies included, to warn of a symbolic number among them. A call
of a region has one argument for each operand of its body, and the partitioner alone copies it a dozen times.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.graph import Graph, map_arg
from torch.fx.node import Argument, Node

from torch_regions.overlay import replaces, stock


_OPERATORS = frozenset({"call_function", "call_method", "call_module"})
_LEAVES = frozenset({Node, int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout})


def _holds_no_symbols(value: Any) -> bool:
    """Whether a value is known to consist of leaves that stock does not warn of."""
    if type(value) in _LEAVES:
        return True
    return isinstance(value, (tuple, list)) and all(map(_holds_no_symbols, value))


@replaces("Graph.node_copy")
def node_copy(self: Any, node: Node, arg_transform: Callable[[Node], Argument] = lambda x: x) -> Node:
    hooks = getattr(self.owning_module, "_create_node_hooks", None)
    # A hook must see the finished node.
    shorter = node.op in _OPERATORS and node.args and not (node.kwargs or hooks)
    if not shorter or type(self).create_node is not Graph.create_node:
        return stock("torch.fx.graph:Graph.node_copy")(self, node, arg_transform)  # type: ignore[no-any-return]
    args: Any = map_arg(node.args, arg_transform)
    if _holds_no_symbols(args) and type(args) is tuple:
        made: Node = self.create_node(node.op, node.target, None, None, node.name, node.type)
        made._update_args_kwargs(args, made.kwargs)
    else:
        made = self.create_node(node.op, node.target, args, node.kwargs, node.name, node.type)
    made.meta = copy.copy(node.meta)
    return made
