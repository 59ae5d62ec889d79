"""`torch_regions.status()`: whether the overlay is on in this process, and what it replaces."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Row:
    """One replacement."""

    target: str
    kind: str  # "module" (stock's is replaced whole), "new" (stock has none), "symbol"
    purpose: str
    remove_when: str
    group: str  # "core", "cost", "cache", "speed": see OVERLAY.md
    always: str  # why it runs in programs without flag and mark too; empty if it does not


@dataclass(frozen=True)
class Status:
    """The state of the overlay in this process."""

    active: bool
    reason: str
    torch_release: str
    digest: str  # empty if the overlay could not be read
    root: str
    rows: tuple[Row, ...]
    # Group that is not used -> the reason
    left_out: Mapping[str, str] = field(default_factory=dict)
    # Holders of a stock object that could not be given its replacement; normally empty
    stale: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.active


def _off(reason: str, release: str, root: str) -> Status:
    return Status(False, reason, release, "", root, ())


def status() -> Status:
    """Whether the overlay is on, and what it replaces. Imports torch, and verifies the overlay if nothing has yet.

    Under TORCH_REGIONS=strict, raises OverlayMismatch if the overlay is off.
    """
    import torch_regions._activate as _activate

    if "torch" not in sys.modules:
        import torch  # noqa: F401
    release = str(getattr(sys.modules["torch"], "__version__", ""))
    if not release:
        return _off("torch is imported in part only", release, _activate.default_root())
    finder = _activate.current()
    if finder is None:
        if _activate.mode() == "0":
            return _off("TORCH_REGIONS=0", release, _activate.default_root())
        return _off(
            "torch did not load it: torch-regions is not installed, or TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set",
            release,
            _activate.default_root(),
        )
    finder.decide()
    decision = finder.decision
    if decision is None:
        return _off("the overlay is being verified", release, finder.root)
    rows = decision.manifest.rows if decision.manifest is not None else ()
    return Status(
        active=decision.active,
        reason=decision.reason,
        torch_release=release,
        digest=decision.digest,
        root=finder.root,
        rows=tuple(Row(row.target, row.kind, row.purpose, row.remove_when, row.group, row.always) for row in rows),
        left_out=dict(decision.left_out),
        stale=tuple(text for patch in decision.patches for text in patch.stale),
    )
