"""The overlay's files by module, and the finder as the other parts of the loader see it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Protocol


if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType


class Finder(Protocol):
    """The finder of one overlay; _finder.py documents its fields."""

    root: str
    mode: str
    files: dict[str, str]
    decision: Any
    pending_modules: frozenset[str]
    always: frozenset[str]
    left_out: frozenset[str]
    codes: dict[str, CodeType]
    applied: dict[str, ModuleType]

    def catch_up(self) -> None:
        """Patch what other import hooks have loaded since the decision."""

    def decide(self) -> bool:
        """Verify and commit, once; True when the overlay is on."""


def overlay_files(root: str) -> dict[str, str]:
    """Module name -> file, for each Python file under `root`/torch; a package has the name of its folder."""
    found: dict[str, str] = {}
    folders = [("torch", os.path.join(root, "torch"))]
    while folders:
        package, folder = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            if entry.name == "__init__.py":
                found[package] = entry.path
            elif entry.name.endswith(".py"):
                found[f"{package}.{entry.name[:-3]}"] = entry.path
            elif entry.name != "__pycache__" and entry.is_dir():
                folders.append((f"{package}.{entry.name}", entry.path))
    return found


def other_spec(
    name: str,
    path: Sequence[str] | None,
    target: ModuleType | None,
) -> ModuleSpec | None:
    """The spec that the import system finds without any overlay."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if find is None or getattr(finder, "is_of_overlay", False):
            continue
        spec: ModuleSpec | None = find(name, path, target)
        if spec is not None:
            return spec
    return None
