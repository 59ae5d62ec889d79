"""The one decision of a process: verify everything, then put the overlay in place, or leave torch as stock."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch_regions._dynamo_rules as _dynamo_rules
import torch_regions._faults as _faults
import torch_regions._groups as _groups
import torch_regions._load as _load
import torch_regions._manifest as _manifest
import torch_regions._switch as _switch
import torch_regions._verify as _verify
from torch_regions._errors import ManifestError, OverlayError, OverlayMismatch, OverlayWarning
from torch_regions._loader import OverlayLoader


if TYPE_CHECKING:
    from collections.abc import Iterable

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
    # Group that is not used -> the reason
    left_out: dict[str, str] = field(default_factory=dict)
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

    def tell_of_groups(self) -> None:
        """Warn once that groups of rows are off, because the installed torch is not the one that they were made for."""
        if not self.told:
            self.told = True
            concerned = frozenset().union(*(mismatch.groups for mismatch in self.mismatches))
            off = [name for name in self.left_out if name in concerned]
            warnings.warn(
                f"torch-regions: {_groups.shortened([str(mismatch) for mismatch in self.mismatches])}. "
                f"Of the overlay, {' and '.join(off)} stay{'s' if len(off) == 1 else ''} off; the rest is on, and "
                "results are the same.",
                OverlayWarning,
                stacklevel=2,
            )


def digest(root: str, files: dict[str, str], left_out: Iterable[str] = ()) -> str:
    """A short hash of the manifest, every overlay file and the groups that are not used.

    Two overlays with equal digests compile alike.
    """
    hasher = hashlib.sha256(",".join(sorted(left_out)).encode())
    for name, path in [("", os.path.join(root, _manifest.NAME)), *sorted(files.items())]:
        with open(path, "rb") as stream:
            content = stream.read()
        hasher.update(f"{name}\0{len(content)}\0".encode())
        hasher.update(content)
    return hasher.hexdigest()[:16]


def decide(finder: Finder) -> Decision:
    """Verify and commit. Neither an unexpected torch nor a faulty overlay makes it raise."""
    if finder.mode not in ("1", "strict"):
        reason = f'TORCH_REGIONS="{finder.mode}" is none of "1" (on), "0" (off), "strict" (an error instead of off)'
        return Decision(False, reason)
    strict = finder.mode == "strict"
    torch = sys.modules["torch"]
    try:
        asked = _groups.asked_for()
        manifest = _manifest.load(os.path.join(finder.root, _manifest.NAME))
        torch_dir = os.path.dirname(os.path.abspath(torch.__file__ or ""))
        release = _verify.base_release(torch.__version__)
        mismatches = _verify.verify(finder.files, manifest, torch_dir, torch.__version__)
        left_out = _groups.left_out(asked, [(str(mismatch), mismatch.groups) for mismatch in mismatches])
        tag = digest(finder.root, finder.files, left_out)
        for name, path in finder.files.items():
            finder.codes[name] = OverlayLoader(name, path, {}).get_code(name)
    except (ManifestError, OSError) as error:
        return Decision(False, str(error), strict=strict)
    except (SyntaxError, ValueError) as error:
        return Decision(False, f"{path} is no Python: {error}", strict=strict)
    relevant = tuple(mismatch for mismatch in mismatches if mismatch.groups & asked)
    if _groups.CORE in left_out or (strict and relevant):
        reason = _groups.shortened([str(mismatch) for mismatch in relevant])
        return Decision(False, reason, tag, strict, manifest, mismatches=tuple(mismatches), left_out=left_out)
    modules = frozenset(row.module for row in manifest.rows if row.kind in ("module", "new"))
    reason = "every row matches" if not left_out else f"without {' and '.join(left_out)}"
    decision = Decision(True, reason, tag, strict, manifest.on(release), modules, relevant, left_out=left_out)
    finder.pending_modules = modules
    finder.always = frozenset(row.target for row in manifest.rows if row.always)
    finder.left_out = manifest.symbols_of(left_out) | manifest.not_for(release)
    try:
        _commit(finder, decision)
        finder.decision = decision
    except BaseException as error:
        _undo(finder, decision)
        if not isinstance(error, Exception):
            raise
        return Decision(False, str(error), tag, strict, manifest)
    return decision


def _undo(finder: Finder, decision: Decision) -> None:
    """Restore every stock module and drop the overlay's own, so that another decision begins where this one did."""
    for patch in reversed(decision.patches):
        patch.undo()
    decision.patches.clear()
    for name in decision.modules:
        path = finder.files.get(name)
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__file__", None) == path:
            del sys.modules[name]
            package, _, last = name.rpartition(".")
            vars(sys.modules.get(package) or module).pop(last, None)
    for name in _dynamo_rules.MODULES.keys() & sys.modules.keys():
        _dynamo_rules.take_back(sys.modules[name])
    finder.decision = None
    finder.pending_modules = finder.always = finder.left_out = frozenset()
    finder.codes.clear()
    finder.applied.clear()
    _switch.before_regions(None)
    _faults.unwatch()


def _commit(finder: Finder, decision: Decision) -> None:
    """Patch the modules that are imported already; the finder patches the others when they are imported.

    Raises OverlayError when a file does not fit; `decision.patches` then holds what was patched before.
    """
    _faults.watch(finder.root)
    for name in sorted(finder.files.keys() | _dynamo_rules.MODULES.keys()):
        module = sys.modules.get(name)
        if module is None:
            continue
        path = finder.files.get(name)
        if getattr(getattr(module, "__spec__", None), "_initializing", False) and path is not None:
            raise OverlayError(f"{name} is being imported by another thread")
        _load.patch_loaded(name, finder, decision)
    _switch.before_regions(finder.catch_up)
