"""The import hook: which overlay file belongs to which module, and the one decision whether to use them.

Nothing is read until the first module is imported that the overlay has a word in. Then every row of the manifest
is verified, and either all files are used or none.
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

# Importing one of these asks for the decision although no overlay file may stand for it: `torch._dynamo` because
# all use of the compiler begins there, the others because their rules must know the overlay's files (_dynamo_rules).
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
        # Modules that are replaced whole; known once the rows are verified, while others are still being patched.
        self.pending_modules: frozenset[str] = frozenset()
        # Targets whose replacement runs in every program; the others are switched. Known with the above.
        self.always: frozenset[str] = frozenset()
        # Targets whose rows are of a group that is not used: they stay stock's. Known with the above.
        self.left_out: frozenset[str] = frozenset()
        # Every overlay file compiled, so that one that is no Python is found before anything is used.
        self.codes: dict[str, CodeType] = {}
        # Modules that are patched, by name: one that is loaded anew is another object.
        self.applied: dict[str, ModuleType] = {}
        self._names = TRIGGERS | self.files.keys()
        # Held while the rows are verified and while modules that are loaded already are patched. Overlay files for
        # such modules import at the top nothing that `import torch` has not loaded (linted), so no thread can wait
        # here for a module lock that a thread waiting for this lock holds.
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
        """Make the finder inert. It stays in sys.meta_path, over which another thread may be iterating."""
        self._retired = True
        self._stand_ins.take_away()

    def decide(self) -> bool:
        """Verify and commit, once; True when the overlay is on.

        Raises OverlayMismatch under TORCH_REGIONS=strict when the overlay cannot be on, each time it is called.
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
                            self._stand_ins.place()  # interrupted: the next one who asks decides anew
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
        """Be asked before any other import hook: a module that another one loads would stay stock's."""
        if sys.meta_path[:1] != [self]:
            others = [finder for finder in sys.meta_path if finder is not self]
            # Twice, see _activate.py. The list stays the same one, as another thread may be going over it.
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
