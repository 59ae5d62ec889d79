"""Fingerprints of stock source: they depend on the meaning of a definition, not on its layout.

The normal form is defined here, because `ast.dump` and `ast.unparse` differ between Python versions, and one manifest
serves all of them.
"""

from __future__ import annotations

import ast
import hashlib
import os
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Fields without meaning, and fields that only some Python versions have
_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


def file_sha(path: str) -> str:
    """sha256 of the bytes of a file. Raises OSError."""
    with open(path, "rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest()


def module_path(torch_dir: str, module: str) -> str | None:
    """The source file of a module of the installed torch, found without an import; None if there is none."""
    parts = module.split(".")
    if parts[0] != "torch":
        return None
    base = os.path.join(torch_dir, *parts[1:])
    for path in (base + ".py", os.path.join(base, "__init__.py")):
        if os.path.isfile(path):
            return path
    return None


def parse(path: str) -> ast.Module:
    """Parse a source file. Raises OSError, SyntaxError or ValueError."""
    with open(path, "rb") as stream:
        return ast.parse(stream.read(), path)


def _is_bare_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _write(node: object, out: list[str]) -> None:
    if isinstance(node, ast.AST):
        out.append(type(node).__name__ + "(")
        for name in node._fields:
            value = getattr(node, name, None)
            if name in _IGNORED or (value is None and not isinstance(node, ast.Constant)) or value == []:
                continue
            out.append(name + "=")
            _write(value, out)
            out.append(",")
        out.append(")")
    elif isinstance(node, list):
        out.append("[")
        for item in node:
            if not _is_bare_string(item):
                _write(item, out)
                out.append(",")
        out.append("]")
    else:
        out.append(f"{type(node).__name__}:{node!r}")


def nodes_sha(nodes: Iterable[ast.AST]) -> str:
    """sha256 of the normal form of some statements."""
    out: list[str] = []
    _write(list(nodes), out)
    return hashlib.sha256("".join(out).encode("utf-8", "surrogatepass")).hexdigest()


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or class body, including those under `if`, `try`, `with` and loops."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            for field in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)
        else:
            yield node


def bound_names(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.split(".")[0] for alias in node.names}
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        targets = [node.target]
    return {sub.id for target in targets for sub in ast.walk(target) if isinstance(sub, ast.Name)}


def find(tree: ast.Module, symbol: str) -> list[ast.stmt]:
    """All statements that bind `symbol` ("function", "Class.method", ...), in order."""
    body: list[ast.stmt] = list(tree.body)
    found: list[ast.stmt] = []
    parts = symbol.split(".")
    for depth, part in enumerate(parts):
        found = [node for node in statements(body) if part in bound_names(node)]
        if depth + 1 < len(parts):
            body = [inner for node in found if isinstance(node, ast.ClassDef) for inner in node.body]
    return found


def symbol_sha(tree: ast.Module, symbol: str | None) -> str | None:
    """The fingerprint of a symbol, or of the whole module if `symbol` is None; None if the symbol does not exist."""
    if symbol is None:
        return nodes_sha(tree.body)
    found = find(tree, symbol)
    return nodes_sha(found) if found else None


def definition_shas(tree: ast.Module) -> dict[str, str]:
    """The fingerprints of a module's functions and of its classes' methods, by dotted name."""
    found = {}
    todo: list[tuple[str, list[ast.stmt]]] = [("", list(tree.body))]
    while todo:
        prefix, body = todo.pop()
        for node in statements(body):
            if isinstance(node, ast.ClassDef):
                todo.append((f"{prefix}{node.name}.", node.body))
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name = prefix + node.name
                found[name] = symbol_sha(tree, name) or ""
    return dict(sorted(found.items()))
