"""Symbols of sizes as operands of a body.

Note [A body is given its symbols]
A backend compiles a body by itself, and what sizes its operands have it says in symbols.  A symbol that is
alone as one size of an operand can be read there; of ``s0 // 2`` it cannot.  So every symbol that occurs in
the sizes, strides or offset of an operand is an operand too, in front of the first one that it occurs in.
In the graph of a frame each symbol is an input, which Dynamo makes beside the tensor that it comes with, and
in a body it is one by this rule; a graph for export has no such inputs, and its bodies neither.

Two nodes may have one symbol for their value (the input, and ``x.size(0)``).  Calls of one body may differ in
which of them they take, so both are taken for the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx


Node = torch.fx.Node


def symbols_in(value: object) -> list[Any]:
    """Symbols in the metadata of an example value, or in the number that it is, in an order of their own."""
    if isinstance(value, torch.SymInt):
        return _symbols([value])
    if not isinstance(value, torch.Tensor) or not value._has_symbolic_sizes_strides:
        return []
    return _symbols([*value.shape, *value.stride(), value.storage_offset()])


def _symbols(numbers: list[Any]) -> list[Any]:
    found: dict[Any, None] = {}
    for number in numbers:
        if isinstance(number, torch.SymInt):
            found.update(dict.fromkeys(sorted(number.node.expr.free_symbols, key=str)))
    return list(found)


def is_symbol(node: Node) -> bool:
    """Whether ``node`` is an input of its graph that is a symbol."""
    value = node.meta.get("example_value")
    return node.op == "placeholder" and isinstance(value, torch.SymInt) and value.node.expr.is_Symbol


def taken_as(operand: Node) -> Node:
    """The node that a region takes in the place of ``operand``: for a symbol the graph's input that is the symbol."""
    value = operand.meta.get("example_value")
    if not isinstance(value, torch.SymInt) or not value.node.expr.is_Symbol:
        return operand
    return _input_of(operand.graph, value.node.expr) or operand


def symbols_of(operand: Node) -> Iterator[Node]:
    """The inputs of its graph that are the symbols of an operand."""
    for symbol in symbols_in(operand.meta.get("example_value")):
        if (found := _input_of(operand.graph, symbol)) is not None:
            yield found


def _input_of(graph: torch.fx.Graph, symbol: Any) -> Node | None:
    for node in graph.find_nodes(op="placeholder", sort=False):
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymInt) and value.node.expr == symbol:
            return node
    return None
