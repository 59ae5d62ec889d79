"""Symbols of sizes as operands of a body.

Note [A body is given its symbols]
A backend compiles a body by itself, with the sizes of its operands as symbols. It can read ``s0`` from an operand of
size ``s0``, but not from one of size ``s0 // 2``. So every symbol that occurs in the sizes, strides or offset of an
operand, and is not itself a size of any operand, becomes an operand too, in front of the first one that it occurs in.
Other symbols do not, because every layer between the call and the body saves, checks and passes each operand. The
exception is a symbol ``s0`` if the region itself makes a value with a size such as ``s0 // 2``: it becomes an operand,
because a region inside of this one may take that value.
In the graph of a frame each symbol is an input, which Dynamo makes beside the tensor that it comes with. In a body it
is an input by this rule. A graph for export has no such inputs, and neither have its bodies.

The value of two nodes may be one symbol (the input, and ``x.size(0)``). Calls of one body may differ in which of them
they take, so both are replaced by the input.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx


Node = torch.fx.Node


def symbols_in(value: object) -> list[Any]:
    """The symbols in the metadata of an example value, or in the number that it is, in a fixed order."""
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
    """Whether ``node`` is an input of its graph whose value is a symbol."""
    value = node.meta.get("example_value")
    return node.op == "placeholder" and isinstance(value, torch.SymInt) and value.node.expr.is_Symbol


def taken_as(operand: Node) -> Node:
    """The node that a region takes instead of ``operand``: for a symbol, the graph's input that is the symbol."""
    value = operand.meta.get("example_value")
    if not isinstance(value, torch.SymInt) or not value.node.expr.is_Symbol:
        return operand
    return input_of(operand.graph, value.node.expr) or operand


def with_symbols(operands: list[Node], region: list[Node]) -> list[Node]:
    """The operands of a region: each after those of its symbols that cannot be read from a size."""
    values = [operand.meta.get("example_value") for operand in operands]
    read = {
        size.node.expr
        for value in values
        if isinstance(value, torch.Tensor) and value._has_symbolic_sizes_strides
        for size in value.shape
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol
    }
    for node in region:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value._has_symbolic_sizes_strides:
            for size in value.shape:
                if isinstance(size, torch.SymInt) and not size.node.expr.is_Symbol:
                    read -= size.node.expr.free_symbols
    found: dict[Node, None] = {}
    for operand, value in zip(operands, values, strict=True):
        for symbol in symbols_in(value):
            if symbol not in read and (given := input_of(operand.graph, symbol)) is not None:
                found[given] = None
        found[taken_as(operand)] = None
    return list(found)


def input_of(graph: torch.fx.Graph, symbol: Any) -> Node | None:
    for node in graph.find_nodes(op="placeholder", sort=False):
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymInt) and value.node.expr == symbol:
            return node
    return None
