"""Verifies that the installed torch is one that the overlay was written for.

It reads installed source files and imports none of them. A stock file with known bytes is verified by its bytes alone.
Only a file that differs is parsed; then each definition that the overlay depends on is compared.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch_regions._fingerprint as _fingerprint
from torch_regions._groups import CORE
from torch_regions._manifest import ABSENT, split_target


if TYPE_CHECKING:
    import ast

    from torch_regions._manifest import Manifest


DIFFERS = "differs from the source that the overlay was verified against"


@dataclass(frozen=True)
class Mismatch:
    """One difference between the manifest and the installed torch or the overlay's files."""

    what: str
    problem: str
    # The groups of rows that are concerned
    groups: frozenset[str] = frozenset({CORE})

    def __str__(self) -> str:
        return f"{self.what} {self.problem}"


def base_release(version: str) -> str:
    """ "2.13.0+cpu" -> "2.13.0": the build does not matter, because its sources are compared."""
    return version.partition("+")[0]


class StockSources:
    """The source files of one installed torch. Each is read and parsed at most once."""

    def __init__(self, torch_dir: str) -> None:
        self.torch_dir = torch_dir
        self._trees: dict[str, ast.Module] = {}
        self._shas: dict[str, str] = {}

    def path(self, module: str) -> str | None:
        return _fingerprint.module_path(self.torch_dir, module)

    def relative(self, path: str) -> str:
        return os.path.relpath(path, self.torch_dir).replace(os.sep, "/")

    def file_sha(self, path: str) -> str:
        if path not in self._shas:
            self._shas[path] = _fingerprint.file_sha(path)
        return self._shas[path]

    def tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = _fingerprint.parse(path)
        return self._trees[path]

    def sha(self, target: str) -> str | None:
        """The fingerprint of a target; None if the module or the symbol does not exist.

        Raises OSError or SyntaxError when the file cannot be read.
        """
        module, symbol = split_target(target)
        path = self.path(module)
        return _fingerprint.symbol_sha(self.tree(path), symbol) if path is not None else None


def _check(target: str, expected: str | None, known: dict[str, str], sources: StockSources) -> str | None:
    """The problem with one stock source, or None."""
    path = sources.path(split_target(target)[0])
    if path is None:
        return None if expected == ABSENT else "is not part of the installed torch"
    try:
        if expected is None:
            return "has no sha256 for this torch release in the manifest"
        if known.get(sources.relative(path)) == sources.file_sha(path):
            return None
        found = sources.sha(target)
    except (OSError, SyntaxError, ValueError) as error:
        return f"cannot be read: {error}"
    if found is None:
        return None if expected == ABSENT else "is not part of the installed torch"
    return None if found == expected else DIFFERS


def _changed_parts(module: str, known: dict[str, str], sources: StockSources) -> str:
    """The changed functions of a module, as the end of a sentence."""
    path = sources.path(module)
    found = _fingerprint.definition_shas(sources.tree(path)) if path is not None else {}
    changed = sorted(name for name in known.keys() | found.keys() if known.get(name) != found.get(name))
    return f", in {', '.join(changed)}" if changed else ""


def _files_against_rows(files: dict[str, str], manifest: Manifest, torch_dir: str) -> list[Mismatch]:
    """Finds rows without a file, files without a row, and an __init__.py that would shadow torch."""
    rows = {row.module for row in manifest.rows}
    found = [
        Mismatch(row.target, "has a row in the manifest but no overlay file")
        for row in manifest.rows
        if row.module not in files
    ]
    for module, path in files.items():
        if path.endswith("__init__.py") and os.path.isdir(os.path.join(torch_dir, *module.split(".")[1:])):
            found.append(Mismatch(path, "must not exist: the installed torch has this package, and ours would hide it"))
        elif module not in rows:
            found.append(Mismatch(module, "has an overlay file but no row in the manifest"))
    return found


def verify(files: dict[str, str], manifest: Manifest, torch_dir: str, version: str) -> list[Mismatch]:
    """All mismatches, in the order of the manifest; empty if the overlay may be used."""
    release = base_release(version)
    if release not in manifest.releases:
        verified = ", ".join(manifest.releases) or "none"
        return [Mismatch(f"torch {version}", f"is not among the verified releases ({verified})")]
    found = _files_against_rows(files, manifest, torch_dir)
    sources = StockSources(torch_dir)
    known = manifest.stock_files.get(release, {})
    manifest = manifest.on(release)
    for row in manifest.rows:
        if row.kind == "new" and sources.path(row.module) is not None:
            hidden = "is part of the installed torch, and ours would hide it"
            found.append(Mismatch(row.target, hidden, frozenset({row.group})))
    groups = manifest.groups_by_target()
    parts = {row.target: row.parts.get(release, {}) for row in manifest.rows}
    for target, hashes in manifest.hashes().items():
        problem = _check(target, hashes.get(release), known, sources)
        if problem == DIFFERS and parts.get(target):
            problem += _changed_parts(target, parts[target], sources)
        if problem is not None:
            found.append(Mismatch(target, problem, groups[target]))
    return found
