"""Changes to loaded modules that can be undone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch_regions._switch as _switch
import torch_regions.overlay as overlay
from torch_regions._held import Box, Snapshot
from torch_regions._rebind import rebind


if TYPE_CHECKING:
    from types import ModuleType


@dataclass
class Patch:
    """The changes that one overlay file made to its module, in order."""

    module: ModuleType
    before: Snapshot
    # For a stock module that was replaced whole: the origin and loader of its spec
    spec: tuple[str, Any] | None = None
    # (symbol, stock object, our object)
    replaced: list[tuple[str, Box, Box]] = field(default_factory=list)
    # symbols of switched stock functions
    switched: list[str] = field(default_factory=list)
    # holders of a stock object that could not be given ours
    stale: list[str] = field(default_factory=list)

    def put(self, symbol: str, old: Any, new: Any) -> None:
        """Replace `old` by `new` as the attribute `symbol`."""
        box = Box(old)
        # Recorded first, so that a step that an interrupt leaves half done is undone too.
        self.replaced.append((symbol, box, Box(new)))
        first, _, last = symbol.rpartition(".")
        if first:
            setattr(overlay.lookup(vars(self.module), first), last, new)
        else:
            vars(self.module)[symbol] = new
        overlay.remember(self.module.__name__, symbol, box)

    def switch(self, symbol: str, place: Any, ours: Any) -> None:
        """Run `ours` instead of a stock function while a program with regions is compiled."""
        self.switched.append(symbol)
        target = f"{self.module.__name__}:{symbol}"
        overlay.remember(self.module.__name__, symbol, _switch.add(target, place, ours).stock)

    def settle(self) -> None:
        """Give our objects to all that got hold of a stock object before it was replaced."""
        self.stale += rebind([(old, new) for _, old, new in self.replaced])

    def undo(self) -> None:
        """Restore the module, and give the stock objects to all that hold one of ours."""
        for symbol, old, _ in reversed(self.replaced):
            first, _, last = symbol.rpartition(".")
            if first:
                setattr(overlay.lookup(self.before, first), last, old.value)
            overlay.forget(self.module.__name__, symbol)
        for symbol in self.switched:
            _switch.remove(f"{self.module.__name__}:{symbol}")
            overlay.forget(self.module.__name__, symbol)
        self.switched.clear()
        restore(self.module, self.before)
        if self.spec is not None:
            self.module.__spec__.origin, self.module.__spec__.loader = self.spec  # type: ignore[union-attr]
        rebind([(new, old) for _, old, new in self.replaced], all_of_them=True)
        self.replaced.clear()


def restore(module: ModuleType, before: Snapshot) -> None:
    """Give a module exactly the names that it had before."""
    namespace = vars(module)
    for name in namespace.keys() - before.keys():
        del namespace[name]
    namespace.update(before)
