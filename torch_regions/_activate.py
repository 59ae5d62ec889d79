"""The `torch.backends` entry point. Runs at the end of every `import torch`, so it imports next to nothing."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from torch_regions._finder import OverlayFinder

_finder: OverlayFinder | None = None

ENV = "TORCH_REGIONS"


def mode() -> str:
    """The value of TORCH_REGIONS, with unset and empty read as "1". Unknown values are returned as they are."""
    return os.environ.get(ENV) or "1"


def default_root() -> str:
    """The folder that holds manifest.toml and torch/: inside the package in a wheel, beside it in the repository."""
    here = os.path.dirname(os.path.abspath(__file__))
    packed = os.path.join(here, "_overlay")
    return packed if os.path.isdir(packed) else os.path.dirname(here)


def activate(root: str | os.PathLike[str] | None = None) -> None:
    """Arrange for the overlay at `root` to be verified and loaded when torch's compiler is first imported.

    torch calls this by itself when torch-regions is installed. Calling it again changes nothing, unless another
    `root` is given before anything was verified. It never raises: a fault is told when the compiler is first
    imported, as a warning, or as an `OverlayMismatch` with TORCH_REGIONS=strict.
    """
    global _finder
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
    # Twice: when another thread takes a finder away from the front while one imports (setuptools does, with its own),
    # the import system passes over the next one. A stock module would then be without what the overlay adds to it.
    sys.meta_path[:0] = [_finder, _finder]
    if "torch._dynamo" in sys.modules:
        _finder.decide()


def current() -> OverlayFinder | None:
    """The finder that was installed last, or None when the overlay was never activated."""
    return _finder
