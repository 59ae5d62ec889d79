"""Checks that manifest, overlay files and stock modules fit together. It reads all files and runs none."""

from __future__ import annotations

import ast
import os
import re
from typing import TYPE_CHECKING

import torch_regions._fingerprint as _fingerprint
import torch_regions._marks as _marks
import torch_regions._refresh as _refresh
from torch_regions._manifest import split_target


if TYPE_CHECKING:
    from torch_regions._manifest import Manifest
    from torch_regions._verify import StockSources


def lint(files: dict[str, str], manifest: Manifest, sources: StockSources, release: str) -> list[str]:
    """One sentence for each thing that does not fit. Raises SyntaxError."""
    found = _rows_against_symbols(files, manifest, sources)
    for row in manifest.rows:
        if row.module not in files or not row.is_for(release):
            continue
        if row.kind == "module":
            found += _missing_exports(row.module, files[row.module], sources)
        elif row.kind == "symbol":
            found += _signature(row.module, row.symbol or "", files[row.module], sources)
    return found


def _rows_against_symbols(files: dict[str, str], manifest: Manifest, sources: StockSources) -> list[str]:
    made = _refresh.wanted_rows(files, sources)
    rows = {row.target: row for row in manifest.rows}
    found = [f"{target} is replaced but has no row in the manifest" for target in made.keys() - rows.keys()]
    found += [f"{target} has a row, but no file makes this replacement" for target in rows.keys() - made.keys()]
    for target in rows.keys() & made.keys():
        if rows[target].kind != made[target][0]:
            found.append(
                f"{target} has kind '{rows[target].kind}' in the manifest and is '{made[target][0]}' in the file"
            )
        if not rows[target].purpose or not rows[target].remove_when:
            found.append(f"{target} has no purpose or no remove_when")
    return found


def importers(module: str, sources: StockSources) -> dict[str, str]:
    """Name that other stock modules import from `module` -> one file that imports it."""
    last = module.rpartition(".")[2]
    pattern = re.compile(rb"\b" + last.encode() + rb"\b")
    found: dict[str, str] = {}
    for folder, _, names in os.walk(sources.torch_dir):
        for name in names:
            path = os.path.join(folder, name)
            if not name.endswith(".py") or path == sources.path(module):
                continue
            with open(path, "rb") as stream:
                if not pattern.search(stream.read()):
                    continue
            relative = sources.relative(path)[:-3].replace("/", ".").removesuffix(".__init__")
            package = f"torch.{relative}" if name != "__init__.py" else f"torch.{relative}.__init__"
            imports = _marks.Imports(sources, package)
            tree = sources.tree(path)
            imports.read(tree)
            for target in {*imports.symbols.values(), *_attributes(tree, imports)}:
                origin, symbol = split_target(target)
                if origin == module and symbol:
                    found[symbol] = sources.relative(path)
    return found


def _attributes(tree: ast.AST, imports: _marks.Imports) -> set[str]:
    targets = {imports.resolve(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {target for target in targets if target is not None}


def _missing_exports(module: str, path: str, sources: StockSources) -> list[str]:
    tree = _fingerprint.parse(path)
    return [
        f"{module} lacks '{name}', which torch/{importer} imports from it"
        for name, importer in sorted(importers(module, sources).items())
        if not _fingerprint.find(tree, name)
    ]


def _parameters(node: ast.stmt) -> list[tuple[str, str]] | None:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    arguments = node.args
    groups = [
        ("positional", arguments.posonlyargs),
        ("plain", arguments.args),
        ("*", [arguments.vararg] if arguments.vararg else []),
        ("keyword", arguments.kwonlyargs),
        ("**", [arguments.kwarg] if arguments.kwarg else []),
    ]
    return [(kind, argument.arg) for kind, group in groups for argument in group]


def _serves(after: list[tuple[str, str]], before: list[tuple[str, str]]) -> bool:
    """Whether any arguments for `before` fit `after`; keyword-only parameters may come in any order."""
    by_place = [each for each in before if each[0] not in ("keyword", "**")]
    same = [each for each in after if each[0] not in ("keyword", "**")][: len(by_place)] == by_place
    return same and set(before) <= set(after)


def _signature(module: str, symbol: str, path: str, sources: StockSources) -> list[str]:
    """A replacement must take the arguments that callers pass to stock's function."""
    ours = _marks.marks(_fingerprint.parse(path)).get(symbol)
    stock_path = sources.path(module)
    stock = _fingerprint.find(sources.tree(stock_path), symbol) if stock_path is not None else []
    if ours is None or not stock:
        return []
    before, after = _parameters(stock[-1]), _parameters(ours)
    if before is None or after is None or _serves(after, before):
        return []
    return [f"{module}:{symbol} takes {_names(after)}, stock's takes {_names(before)}"]


def _names(parameters: list[tuple[str, str]]) -> str:
    return "(" + ", ".join(name for _, name in parameters) + ")"
