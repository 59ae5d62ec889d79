"""The import hook: it maps modules to overlay files, and decides once whether to use them.

It reads nothing until a module that the overlay patches is imported for the first time. Then it verifies every row of
the manifest (_decide.py).
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from torch_regions._files import overlay_files


if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

    from torch_regions._decide import Decision

# The import of one of these makes the decision, whether or not it has an overlay file: all use of the compiler begins
# with `torch._dynamo`, and the rules of the others must know the overlay's files (_dynamo_rules).
TRIGGERS = frozenset(
    {
        "torch._dynamo",
        "torch._dynamo.trace_rules",
        "torch._dynamo.guards",
        "torch.fx.experimental.symbolic_shapes",
    }
)


class OverlayFinder:
    """A meta path finder for the modules that the overlay replaces or extends."""

    is_of_overlay = True

    def __init__(self, root: str, mode: str) -> None:
        self.root = root
        self.mode = mode
        self.files = overlay_files(root)
        self.decision: Decision | None = None
        # Modules that are replaced whole. This field and the next two are set once the rows are verified, before
        # loaded modules are patched.
        self.pending_modules: frozenset[str] = frozenset()
        # Targets whose replacement runs in every program; the others are switched.
        self.always: frozenset[str] = frozenset()
        # Targets that stay stock's: their rows are of a group that is not used, or for other releases.
        self.left_out: frozenset[str] = frozenset()
        # Every overlay file's code, compiled before anything is used, so that a syntax error turns the overlay off.
        self.codes: dict[str, CodeType] = {}
        # Name -> patched module. A module that is loaded again is another object, and has to be patched again.
        self.applied: dict[str, ModuleType] = {}
        self._names = TRIGGERS | self.files.keys()
        # Held while the rows are verified and while loaded modules are patched. The overlay files of these modules
        # import at the top only what `import torch` has loaded (linted). So a thread that holds this lock never waits
        # for a module lock that belongs to a thread waiting for this one.
        self._lock = threading.RLock()
        self._committing = False
        self._retired = False
        import torch_regions._cache_tag as _cache_tag
        import torch_regions._early as _early

        _cache_tag.install(self)
        self._stand_ins = _early.StandIns(self)
        self._stand_ins.place()

    @property
    def decided(self) -> bool:
        return self.decision is not None

    def retire(self) -> None:
        """Make the finder inert. It stays in sys.meta_path, because another thread may be iterating over the list."""
        self._retired = True
        self._stand_ins.take_away()

    def decide(self) -> bool:
        """Verify and commit, once; True when the overlay is on.

        Under TORCH_REGIONS=strict, each call raises OverlayMismatch if the overlay cannot be on.
        """
        decision = self.decision
        if decision is None:
            with self._lock:
                if self._committing:
                    return True
                decision = self.decision
                if decision is None:
                    import torch_regions._decide as _decide

                    self._committing = True
                    self.go_first()
                    self._stand_ins.take_away()
                    try:
                        decision = _decide.decide(self)
                    except BaseException:
                        if self.decision is None:
                            self._stand_ins.place()  # interrupted: the next call decides anew
                        raise
                    finally:
                        self._committing = False
                    self.decision = decision
        if not decision.active:
            decision.tell()
        elif decision.mismatches:
            decision.tell_of_groups()
        return decision.active

    def go_first(self) -> None:
        """Move to the front of the import hooks: a module that another hook loads would stay stock's."""
        if sys.meta_path[:1] != [self]:
            others = [finder for finder in sys.meta_path if finder is not self]
            # Twice, see _activate.py. In place, because another thread may be iterating over the list.
            sys.meta_path[:] = [self, self, *others]

    def catch_up(self) -> None:
        """Patch what other import hooks have loaded since the decision, before a program with regions is compiled.

        Raises OverlayError when a file does not fit its module.
        """
        self.go_first()
        decision = self.decision
        if decision is None or not decision.active:
            return
        import torch_regions._load as _load

        if _load.left_behind(self):
            with self._lock:
                for name in _load.left_behind(self):
                    _load.patch_loaded(name, self, decision)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._names or self._retired or not self.decide():
            return None
        import torch_regions._load as _load

        return _load.spec_for(name, self.files.get(name), self, path, target)
