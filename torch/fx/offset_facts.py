"""Which operators see where an operand begins in its storage.

Note [A body does not see storage offsets]
Step ``t`` of a loop over time takes ``x[:, t]``, and layer ``i`` may take row ``i`` of a table. Such operands differ in
their storage offsets only. Nearly all operators do the same to all of them: they reach elements by sizes and strides
from the tensor's first element, and the offset of a view that they return is as far from the operand's as in any other
call. Dynamo has no guard on an offset either, and breaks the graph where a program asks for it. So the key of a tensor
does not have the offset (regions/keys.py), and one body serves all such calls. Three things remain:

- A few operators count from the beginning of the storage, or refuse some offsets (``sees_offset``). An operator of the
  user's may do so, as may a higher-order operator other than those that only run their bodies. The key of a node has
  the offsets of its operands if its operator is one of these, and a call is reused for operands of the same offsets.
- Inductor compiles a kernel for inputs that are aligned, or for others. On a device where this matters, the key of a
  tensor has how far its first element is from an aligned address.
- A traced call may have two operands in one storage. The distance between them is compared; so the values of a call
  that is reused are those of the traced one, moved by one distance for each storage (``_Values`` in stamps.py).

The backward of a body does not see the offsets of its tangents either. These differ where a program stacks or
concatenates what calls return: each gradient is then a part of one tensor. So such calls share one backward, unless it
has one of the operators above.

A symbolic offset stays in the key if one of its symbols is not a size of the same tensor: this symbol is an operand of
the body (regions/outline/symbols.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.fx
from torch.fx.operator_facts import (
    OperatorClass,
    argument_of,
    is_body,
    is_switch,
    is_users_operator,
    operator_class,
    runs_its_bodies,
    target_name,
)


Node = torch.fx.Node

# Those that count from the beginning of the storage, and ``view_as_complex``, which refuses an odd offset. Those that
# change the storage of a tensor (``set_``, ``resize_``) are opaque.
_OPERATORS = frozenset(
    [
        *("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter", "view_as_complex"),
        *("view_as_complex_copy", "is_set_to", "storage_offset", "sym_storage_offset", "untyped_storage"),
    ]
)
_VIEWS = frozenset(["view", "view_copy"])
# Body -> what ``sees_storage`` found.
_SEES_STORAGE: weakref.WeakKeyDictionary[torch.fx.GraphModule, bool] = weakref.WeakKeyDictionary()


def sees_offset(node: Node) -> bool:
    """Whether a call node may do something else, or return another metadata, for operands of other storage offsets.

    False for an operator that only runs its bodies: the operators in these are asked one by one.
    """
    if runs_its_bodies(node) or is_switch(node):
        return False
    name = target_name(node)
    if name in _VIEWS:  # to a wider type, an operand must begin at a multiple of it
        return isinstance(argument_of(node, (1, "dtype"), None), torch.dtype)
    return name in _OPERATORS or is_users_operator(node) or operator_class(node) is not OperatorClass.PURE


def seeing_offsets(nodes: Iterable[Node], modules: Mapping[str, Any]) -> list[Node]:
    """Those of ``nodes`` that see the offsets of their operands, themselves or in a body that they run.

    ``modules``: name -> the graph that a ``get_attr`` node stands for.
    """
    return [node for node in nodes if node.op.startswith("call") and _sees_or_runs(node, modules)]


def _sees_or_runs(node: Node, modules: Mapping[str, Any]) -> bool:
    if sees_offset(node):
        return True
    bodies = [modules.get(str(operand.target)) for operand in node.all_input_nodes if is_body(operand)]
    return any(not isinstance(b, torch.fx.GraphModule) or seeing_offsets(b.graph.nodes, modules) for b in bodies)


def sees_storage(body: Any) -> bool:
    """Whether an operator of a body sees where the body's operands begin in their storages.

    True for a body that is no graph, because its operators are not known.
    """
    if not isinstance(body, torch.fx.GraphModule):
        return True
    if body not in _SEES_STORAGE:
        _SEES_STORAGE[body] = bool(seeing_offsets(body.graph.nodes, dict(body.named_children())))
    return _SEES_STORAGE[body]
