"""The one decision of a process: verify everything, then use all of the overlay or none of it."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch_regions._dynamo_rules as _dynamo_rules
import torch_regions._faults as _faults
import torch_regions._load as _load
import torch_regions._manifest as _manifest
import torch_regions._verify as _verify
from torch_regions._errors import ManifestError, OverlayError, OverlayMismatch, OverlayWarning
from torch_regions._loader import OverlayLoader


if TYPE_CHECKING:
    from torch_regions._files import Finder
    from torch_regions._patch import Patch


@dataclass
class Decision:
    """Whether the overlay is on in this process, and why not."""

    active: bool
    reason: str
    digest: str = ""
    strict: bool = False
    manifest: _manifest.Manifest | None = None
    modules: frozenset[str] = frozenset()
    mismatches: tuple[_verify.Mismatch, ...] = ()
    patches: list[Patch] = field(default_factory=list)
    told: bool = False

    def tell(self) -> None:
        """Warn once that the overlay is off, or raise OverlayMismatch each time under strict."""
        if self.strict:
            raise OverlayMismatch(f"torch-regions: {self.reason}")
        if not self.told:
            self.told = True
            warnings.warn(
                f"torch-regions: {self.reason}. The whole overlay stays off; torch behaves as without it.",
                OverlayWarning,
                stacklevel=2,
            )


def digest(root: str, files: dict[str, str]) -> str:
    """A short hash of the manifest and of every overlay file: two overlays with one digest compile alike."""
    hasher = hashlib.sha256()
    for name, path in [("", os.path.join(root, _manifest.NAME)), *sorted(files.items())]:
        with open(path, "rb") as stream:
            content = stream.read()
        hasher.update(f"{name}\0{len(content)}\0".encode())
        hasher.update(content)
    return hasher.hexdigest()[:16]


def _name_some(mismatches: list[_verify.Mismatch], limit: int = 5) -> str:
    texts = [str(mismatch) for mismatch in mismatches[:limit]]
    if len(mismatches) > limit:
        texts.append(f"and {len(mismatches) - limit} more (python -m torch_regions verify)")
    return "; ".join(texts)


def decide(finder: Finder) -> Decision:
    """Verify and commit. Never raises for what the installed torch or the overlay is like."""
    if finder.mode not in ("1", "strict"):
        reason = f'TORCH_REGIONS="{finder.mode}" is none of "1" (on), "0" (off), "strict" (an error instead of off)'
        return Decision(False, reason)
    strict = finder.mode == "strict"
    torch = sys.modules["torch"]
    try:
        manifest = _manifest.load(os.path.join(finder.root, _manifest.NAME))
        torch_dir = os.path.dirname(os.path.abspath(torch.__file__ or ""))
        mismatches = _verify.verify(finder.files, manifest, torch_dir, torch.__version__)
        tag = digest(finder.root, finder.files)
        for name, path in finder.files.items():
            finder.codes[name] = OverlayLoader(name, path, {}).get_code(name)
    except (ManifestError, OSError) as error:
        return Decision(False, str(error), strict=strict)
    except (SyntaxError, ValueError) as error:
        return Decision(False, f"{path} is no Python: {error}", strict=strict)
    if mismatches:
        reason = _name_some(mismatches)
        return Decision(False, reason, tag, strict, manifest, mismatches=tuple(mismatches))
    modules = frozenset(row.module for row in manifest.rows if row.kind in ("module", "new"))
    decision = Decision(True, "every row matches", tag, strict, manifest, modules)
    finder.pending_modules = modules
    finder.always = frozenset(row.target for row in manifest.rows if row.always)
    try:
        _commit(finder, decision)
    except Exception as error:
        for patch in reversed(decision.patches):
            patch.undo()
        return Decision(False, str(error), tag, strict, manifest)
    return decision


def _commit(finder: Finder, decision: Decision) -> None:
    """Patch the modules that were imported before anyone asked for the compiler; others follow when imported.

    Raises OverlayError when a file does not fit; what was patched until then is in `decision.patches`.
    """
    _faults.watch(finder.root)
    for name in sorted(finder.files.keys() | _dynamo_rules.MODULES.keys()):
        module = sys.modules.get(name)
        if module is None:
            continue
        path = finder.files.get(name)
        if getattr(getattr(module, "__spec__", None), "_initializing", False) and path is not None:
            raise OverlayError(f"{name} is being imported by another thread")
        if name in decision.modules and path is not None:
            decision.patches.append(_load.replace_and_apply(module, path, finder))
        else:
            patch = _load.after_stock(module, path, finder)
            if patch is not None:
                decision.patches.append(patch)
