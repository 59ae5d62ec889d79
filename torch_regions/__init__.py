"""torch-regions: compile a repeated block once.

The package holds no compiler. It loads the overlay: the files under ``torch/`` that replace functions and modules of
the installed torch. See OVERLAY.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_regions._activate import activate


if TYPE_CHECKING:
    from torch_regions._errors import ManifestError, OverlayError, OverlayMismatch, OverlayWarning
    from torch_regions._report import Report, report
    from torch_regions._status import Row, Status, status

__version__ = "0.2.0"

__all__ = [
    "ManifestError",
    "OverlayError",
    "OverlayMismatch",
    "OverlayWarning",
    "Report",
    "Row",
    "Status",
    "activate",
    "report",
    "status",
]

# Each `import torch` imports this module, so these are imported when they are first used.
_LAZY = {
    "ManifestError": "_errors",
    "OverlayError": "_errors",
    "OverlayMismatch": "_errors",
    "OverlayWarning": "_errors",
    "Row": "_status",
    "Status": "_status",
    "Report": "_report",
    "report": "_report",
    "status": "_status",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"torch_regions.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
