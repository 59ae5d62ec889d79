"""Sizes of one call with the symbols of another one in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx.experimental.sym_node import SymNode


SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def with_symbols_of(numbers: Iterable[Any], symbols: dict[Any, Any]) -> list[Any]:
    """``numbers`` (sizes, strides) with the ``symbols`` of another call: symbol -> symbol with the same hint."""
    return [_renamed(n, symbols) if symbols and isinstance(n, SYMBOLIC) else n for n in numbers]


def _renamed(number: Any, symbols: dict[Any, Any]) -> Any:
    node = number.node
    new = node.expr.xreplace(symbols)
    return number if new == node.expr else type(number)(SymNode(new, node.shape_env, node.pytype, node.hint))


def without_guards(mode: Any) -> contextlib.AbstractContextManager[Any]:
    """Within, no guards on sizes of fake tensors of ``mode`` are made: tracing the program has made all it needs."""
    return contextlib.nullcontext() if mode.shape_env is None else mode.shape_env.suppress_guards()
