"""The `torch.backends` entry point. It runs at the end of every `import torch`, so it imports next to nothing."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from torch_regions._finder import OverlayFinder

_finder: OverlayFinder | None = None

ENV = "TORCH_REGIONS"
# The folder to which `explain` has a program's processes write what they compile.
EXPLAIN = "TORCH_REGIONS_EXPLAIN"
# "1": a line on the terminal says how far a compile is.
PROGRESS = "TORCH_REGIONS_PROGRESS"


def mode() -> str:
    """The value of TORCH_REGIONS; "1" if it is unset or empty. Unknown values are returned unchanged."""
    return os.environ.get(ENV) or "1"


def default_root() -> str:
    """The folder that holds manifest.toml and torch/: inside the package in a wheel, beside it in the repository."""
    here = os.path.dirname(os.path.abspath(__file__))
    packed = os.path.join(here, "_overlay")
    return packed if os.path.isdir(packed) else os.path.dirname(here)


def activate(root: str | os.PathLike[str] | None = None) -> None:
    """Arrange for the overlay at `root` to be verified and loaded when torch's compiler is first imported.

    torch calls this by itself when torch-regions is installed. A second call changes nothing, unless it gives another
    `root` before anything was verified. It never raises. A fault is reported when the compiler is first imported: as a
    warning, or as an `OverlayMismatch` under TORCH_REGIONS=strict.
    """
    global _finder
    if EXPLAIN in os.environ:  # by name: it asks this module whether the overlay is on
        from importlib import import_module

        import_module("torch_regions._report.record").start(os.environ[EXPLAIN])
    if os.environ.get(PROGRESS) == "1":
        from importlib import import_module

        import_module("torch_regions._report.progress")
    setting = mode()
    if setting == "0":
        return
    where = os.path.abspath(root) if root is not None else default_root()
    if _finder is not None:
        if _finder.decided or _finder.root == where:
            return
        _finder.retire()
    from torch_regions._finder import OverlayFinder

    _finder = OverlayFinder(where, setting)
    # Inserted twice: if another thread removes the first finder during an import (setuptools removes its own), the
    # import system skips the next one. A stock module would then lack what the overlay adds to it.
    sys.meta_path[:0] = [_finder, _finder]
    if "torch._dynamo" in sys.modules:
        _finder.decide()


def current() -> OverlayFinder | None:
    """The finder that was installed last; None if the overlay was never activated."""
    return _finder
