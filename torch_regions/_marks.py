"""Reads overlay files without running them: what they replace, and which names of torch they use."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch_regions._fingerprint as _fingerprint


if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_regions._verify import StockSources

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _marked_symbol(node: Definition) -> str | None:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Name) and decorator.id == "replaces":
            return node.name
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", None) == "replaces":
            argument = decorator.args[0] if decorator.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                return argument.value
    return None


def marks(tree: ast.Module) -> dict[str, Definition]:
    """Symbol -> definition marked with `replaces`. Of duplicates, which the loader rejects, the last one counts."""
    found = {}
    for node in _fingerprint.statements(tree.body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            symbol = _marked_symbol(node)
            if symbol is not None:
                found[symbol] = node
    return found


def is_private(target: str) -> bool:
    """Whether any part of a target ("torch.a._b:c") is private. Names of torch._C, which is not Python, are not."""
    if target == "torch:_C" or target.startswith("torch._C"):
        return False
    parts = target.replace(":", ".").split(".")
    return any(part.startswith("_") and not part.endswith("__") for part in parts)


@dataclass
class Imports:
    """Maps the names of a file to modules of torch, and to symbols of these modules."""

    sources: StockSources
    module: str
    modules: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)

    def read(self, tree: ast.AST) -> None:
        for node in _runtime_nodes(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.split(".")[0]
                    if name.split(".")[0] == "torch":
                        self.modules[alias.asname or name] = name
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(node)
                if origin.split(".")[0] != "torch":
                    continue
                for alias in node.names:
                    full = f"{origin}.{alias.name}"
                    if self.sources.path(full) is not None:
                        self.modules[alias.asname or alias.name] = full
                    else:
                        self.symbols[alias.asname or alias.name] = f"{origin}:{alias.name}"

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        base = self.module.split(".")[: -node.level]
        return ".".join([*base, *([node.module] if node.module else [])])

    def resolve(self, node: ast.expr) -> str | None:
        """The target that a name or a chain of attributes refers to, or None."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        if not attributes:
            return self.symbols.get(node.id)
        module = self.modules.get(node.id)
        if module is None:
            return None
        while attributes and self.sources.path(f"{module}.{attributes[0]}") is not None:
            module = f"{module}.{attributes.pop(0)}"
        return f"{module}:{attributes[0]}" if attributes else None


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those under `if TYPE_CHECKING`."""
    yield tree
    children = list(ast.iter_child_nodes(tree))
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        children = list(tree.orelse)
    for child in children:
        yield from _runtime_nodes(child)


def _targets(node: ast.AST, imports: Imports) -> set[str]:
    found = set()
    for sub in _runtime_nodes(node):
        if isinstance(sub, (ast.Name, ast.Attribute)):
            target = imports.resolve(sub)
            if target is not None:
                found.add(target)
    return found


def uses(tree: ast.Module, module: str, sources: StockSources) -> dict[str | None, set[str]]:
    """Symbol -> private stock names that the replacement uses, directly or through the file's own helpers.

    The key None has the names that no replacement uses, or all names if nothing is marked.
    """
    imports = Imports(sources, module)
    imports.read(tree)
    by_name: dict[str, list[ast.stmt]] = {}
    for statement in _fingerprint.statements(tree.body):
        for name in _fingerprint.bound_names(statement):
            by_name.setdefault(name, []).append(statement)
    found: dict[str | None, set[str]] = {}
    for symbol, definition in marks(tree).items():
        reached: set[int] = set()
        todo: list[ast.AST] = [definition]
        found[symbol] = set()
        while todo:
            node = todo.pop()
            if id(node) in reached:
                continue
            reached.add(id(node))
            found[symbol] |= _targets(node, imports)
            for sub in ast.walk(node):
                if isinstance(sub, ast.Name):
                    todo += by_name.get(sub.id, [])
    everything = _targets(tree, imports) | set(imports.symbols.values())
    found[None] = everything - set().union(*found.values()) if found else everything
    return {symbol: {target for target in targets if is_private(target)} for symbol, targets in found.items()}
