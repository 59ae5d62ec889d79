"""One unified diff for each replacement, stock's source against ours."""

from __future__ import annotations

import ast
import difflib
from typing import TYPE_CHECKING

import torch_regions._fingerprint as _fingerprint
import torch_regions._marks as _marks


if TYPE_CHECKING:
    from torch_regions._manifest import Replacement
    from torch_regions._verify import StockSources


def _read(path: str) -> list[str]:
    with open(path, encoding="utf-8") as stream:
        return stream.read().splitlines()


def _segment(path: str, nodes: list[ast.stmt]) -> list[str]:
    """The lines of some statements and their decorators."""
    lines = _read(path)
    found: list[str] = []
    for node in nodes:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        block = lines[first - 1 : node.end_lineno]
        indent = min((len(line) - len(line.lstrip()) for line in block if line.strip()), default=0)
        found += [line[indent:] for line in block]
    return found


def diff(row: Replacement, ours: str, sources: StockSources) -> list[str]:
    """The lines of one row's unified diff. Raises OSError or SyntaxError when a file cannot be read."""
    stock = sources.path(row.module)
    if row.symbol is None:
        before = _read(stock) if stock is not None else []
        after = _read(ours)
    else:
        before = _segment(stock, _fingerprint.find(sources.tree(stock), row.symbol)) if stock is not None else []
        definition = _marks.marks(_fingerprint.parse(ours)).get(row.symbol)
        after = _segment(ours, [definition]) if definition is not None else []
    name = f"{row.module.replace('.', '/')}.py"
    return list(difflib.unified_diff(before, after, f"stock/{name}", f"overlay/{name}", lineterm=""))
