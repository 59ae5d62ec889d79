"""Numbers of one call with the symbols of another one in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx.experimental.sym_node import SymNode


SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def renamed(number: Any, symbols: dict[Any, Any]) -> Any:
    """``number`` with the ``symbols`` of another call: symbol -> symbol with the same hint."""
    if not symbols or not isinstance(number, SYMBOLIC):
        return number
    node = number.node
    # As it was made: what the frame has found out of the traced call's symbols since does not hold for the others.
    old = node._expr
    new = old.xreplace(symbols)
    return number if new == old else type(number)(SymNode(new, node.shape_env, node.pytype, node.hint))


def all_renamed(numbers: Iterable[Any], symbols: dict[Any, Any]) -> list[Any]:
    """``numbers`` (sizes, strides), each as by ``renamed``."""
    return [renamed(number, symbols) for number in numbers]
