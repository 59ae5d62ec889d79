"""Merges an extension into the text of its stock module.

A replacement takes the position of stock's definition, so decorators and later readers get ours.  The extension's other
definitions come at the end, where the loader runs them.  If ours calls a stock definition, _inline.py writes ours as a
change in it, or stock's stays under another name.
"""

from __future__ import annotations

import ast
import collections
import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch_regions._fingerprint as _fingerprint
import torch_regions._inline as _inline
import torch_regions._marks as _marks
from torch_regions._errors import OverlayError


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


PREFIX = "_inner_"
_FUTURE = "from __future__ import annotations\n"


class MergeError(OverlayError):
    """An extension cannot be written into its stock module."""


class _Text:
    """Source text, and edits of it at positions of its syntax tree."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._edits: list[tuple[int, int, str]] = []

    def offset(self, line: int, column: int) -> int:
        """The index in the text of a position in the tree, whose columns count bytes."""
        if line > len(self._lines):
            return len(self.text)
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def whole_lines(self, node: ast.stmt, comments: bool = False) -> tuple[int, int]:
        """Start and end of a statement's lines: its decorators, and if `comments` also the comments right above."""
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        while comments and first > 1 and self._lines[first - 2].startswith("#"):
            first -= 1
        assert node.end_lineno is not None
        return self.offset(first, 0), self.offset(node.end_lineno + 1, 0)

    def put(self, start: int, end: int, new: str) -> None:
        self._edits.append((start, end, new))

    def result(self) -> str:
        text = self.text
        for start, end, new in sorted(self._edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text


@dataclass
class _Definition:
    """One of our definitions, which replaces a stock definition."""

    symbol: str
    text: str


def merge(stock: str, ours: str, module: str) -> str:
    """The text of a stock module with an extension merged into it.  Raises ``MergeError``."""
    into = _Text(stock)
    calls = _called_stock(ast.parse(ours), module)
    kept = {symbol: _reference(into.tree, symbol) for symbol in calls}
    definitions, at_top, at_end = _apart(_without_stock_calls(ours, module, kept), module)
    for definition in definitions:
        _replace(into, definition, kept.get(definition.symbol), calls.get(definition.symbol, 0))
    _insert_imports(into, at_top)
    end = at_end.strip("\n")
    return into.result().rstrip("\n") + "\n" + (f"\n\n{end}\n" if end else "")


def only(ours: str, symbols: Collection[str | None]) -> str:
    """An extension without its replacements of symbols that are not among `symbols`."""
    text = _Text(ours)
    for symbol, node in _marks.marks(text.tree).items():
        if symbol not in symbols:
            text.put(*text.whole_lines(node, comments=True), "")
    return text.result()


def needed(ours: str) -> str:
    """An extension without the definitions that no replacement uses, directly or through another definition."""
    text = _Text(ours)
    body = text.tree.body
    wanted = {id(node) for node in _marks.marks(text.tree).values()}
    names = {"replaces", "annotations"}
    while True:
        kept = [node for node in body if id(node) in wanted or names & _defined(node)]
        used = {each.id for node in kept for each in ast.walk(node) if isinstance(each, ast.Name)}
        if used <= names:
            break
        names |= used
    for node in body:
        if node not in kept and not (node is body[0] and isinstance(node, ast.Expr)):  # the docstring stays
            text.put(*text.whole_lines(node, comments=True), "")
    return text.result()


def _defined(node: ast.stmt) -> set[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _called_stock(tree: ast.Module, module: str) -> collections.Counter[str]:
    """Symbols of the stock module that ours calls, with the number of calls."""
    return collections.Counter(symbol for _, symbol in _stock_calls(tree, module))


def _stock_calls(tree: ast.Module, module: str) -> list[tuple[ast.Call, str]]:
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "stock":
            target = _constant(node.args[0], constants)
            of, _, symbol = target.partition(":")
            if of != module:
                raise MergeError(f"{module} calls stock's {target}, of another module")
            found.append((node, symbol))
    return found


def _constant(node: ast.expr, constants: Mapping[str, object]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_constant(part, constants) for part in node.values)
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name) and node.value.id in constants:
        return str(constants[node.value.id])
    raise MergeError(f"line {node.lineno}: what is asked of stock() is not a constant")


def _reference(tree: ast.Module, symbol: str) -> str:
    """The expression by which ours calls a stock definition that stays."""
    owner, _, name = symbol.rpartition(".")
    kept = PREFIX + name.strip("_")
    if not owner:
        return kept
    decorators = {ast.unparse(d) for d in getattr(_definition(tree, symbol), "decorator_list", [])}
    return f"{owner}.{kept}.__func__" if "classmethod" in decorators else f"{owner}.{kept}"


def _definition(tree: ast.Module, symbol: str) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef:
    found = _fingerprint.find(tree, symbol)
    if len(found) != 1 or not isinstance(found[0], (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        raise MergeError(f"stock has {len(found)} definitions of {symbol}")
    return found[0]


def _without_stock_calls(ours: str, module: str, kept: dict[str, str]) -> str:
    text = _Text(ours)
    for call, symbol in _stock_calls(text.tree, module):
        assert call.end_lineno is not None and call.end_col_offset is not None
        start = text.offset(call.lineno, call.col_offset)
        text.put(start, text.offset(call.end_lineno, call.end_col_offset), kept[symbol])
    return text.result()


def _apart(ours: str, module: str) -> tuple[list[_Definition], list[ast.Import | ast.ImportFrom], str]:
    """An extension's replacements, its imports of modules outside of torch, and the rest of its text."""
    text = _Text(ours)
    replacing = {id(node): symbol for symbol, node in _marks.marks(text.tree).items()}
    definitions: list[_Definition] = []
    at_top: list[ast.Import | ast.ImportFrom] = []
    for number, node in enumerate(text.tree.body):
        start, end = text.whole_lines(node, comments=True)
        if id(node) in replacing:
            definitions.append(_Definition(replacing[id(node)], _unmarked(text, node, replacing[id(node)], start, end)))
            text.put(start, end, "")
        elif number == 0 and isinstance(node, ast.Expr):
            text.put(start, end, "")  # the docstring: the module has one
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            origin = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            top = str(origin).partition(".")[0]
            if top == "torch" and origin != module:
                continue
            start, end = text.whole_lines(node)
            if top not in ("torch", "torch_regions", "__future__"):
                at_top.append(node)
            text.put(start, end, "")
    return definitions, at_top, re.sub(r"\n{4,}", "\n\n\n", text.result())


def _unmarked(text: _Text, node: ast.stmt, symbol: str, start: int, end: int) -> str:
    """A replacement without its mark, under the name that it replaces."""
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    for inner in ast.walk(node):
        spans = isinstance(inner, (ast.Constant, ast.JoinedStr)) and inner.lineno != inner.end_lineno
        if spans and "." in symbol and ast.get_docstring(node, clean=False) != getattr(inner, "value", None):
            raise MergeError(f"{symbol} has a string of several lines, which cannot be indented")
    lines = text.text[start:end].splitlines(keepends=True)
    marks = [d for d in node.decorator_list if "replaces" in ast.unparse(d)]
    at = text.text.count("\n", 0, start) + 1
    dropped = {number for mark in marks for number in range(mark.lineno - at, (mark.end_lineno or 0) - at + 1)}
    head = node.lineno - at
    lines[head] = re.sub(r"^(async def|def|class) \w+", rf"\1 {symbol.rpartition('.')[2]}", lines[head])
    return "".join(line for number, line in enumerate(lines) if number not in dropped)


def _replace(into: _Text, definition: _Definition, reference: str | None, calls: int) -> None:
    """Writes one of ours in place of stock's.  Ours calls stock's ``calls`` times, by ``reference``."""
    node = _definition(into.tree, definition.symbol)
    start, end = into.whole_lines(node)
    indent = " " * node.col_offset
    new = definition.text
    if reference is not None:
        old = textwrap.dedent(into.text[start:end])
        # If there are more calls, another definition of ours may need stock's.
        merged = _inline.inline(new, old, reference) if calls == 1 else None
        new = merged if merged is not None else _beside(old, node, definition, bool(indent))
    into.put(start, end, re.sub(r"(?m)^(?=.)", indent, new) if indent else new)


def _beside(old: str, node: ast.AST, definition: _Definition, in_class: bool) -> str:
    """Stock's function under another name, and ours."""
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    name = PREFIX + node.name.strip("_")
    renamed = re.sub(rf"(?m)^(async )?def {re.escape(node.name)}\(", rf"\1def {name}(", old, count=1)
    if renamed == old:
        raise MergeError(f"{definition.symbol} cannot be kept under another name")
    return renamed + ("\n" if in_class else "\n\n") + definition.text


def _insert_imports(into: _Text, at_top: list[ast.Import | ast.ImportFrom]) -> None:
    """Adds our imports, and the ``__future__`` import of annotations, which ours needs, where it is missing."""
    body = into.tree.body
    future = [n for n in body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    delayed = any(alias.name == "annotations" for node in future for alias in node.names)
    docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    last = future[-1] if future else body[0] if docstring else None
    place = into.whole_lines(last)[1] if last is not None else into.whole_lines(body[0])[0]
    known = {key for node in body if isinstance(node, (ast.Import, ast.ImportFrom)) for key in _imported(node)}
    lines = [] if delayed else [_FUTURE]
    for node in at_top:
        node.names = [alias for alias, key in zip(node.names, _imported(node), strict=True) if key not in known]
        if node.names:
            lines.append(ast.unparse(node) + "\n")
    if lines:
        into.put(place, place, "\n" * (last is not None) + "".join(lines))


def _imported(node: ast.Import | ast.ImportFrom) -> list[tuple[str | None, str, str | None]]:
    return [(getattr(node, "module", None), alias.name, alias.asname) for alias in node.names]
