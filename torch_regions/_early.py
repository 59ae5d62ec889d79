"""Functions that users call before they import the compiler, so that their replacement must be in place early.

`torch.compiler.nested_compile_region` marks functions while a program's modules are imported, before `torch._dynamo`
is. Until the decision is made, a stand-in replaces such a function in its module. Its first call makes the decision,
then calls what the module has by then. The stock functions are put back before anything is verified.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from torch_regions._files import Finder

# module -> its functions. A module that `import torch` has not loaded gets no stand-in.
ENTRIES: dict[str, tuple[str, ...]] = {"torch._higher_order_ops.invoke_subgraph": ("mark_compile_region",)}


class StandIns:
    """The stand-ins of one finder."""

    def __init__(self, finder: Finder) -> None:
        self.finder = finder
        # (module, name, stock function, stand-in)
        self.placed: list[tuple[ModuleType, str, Any, Any]] = []

    def place(self) -> None:
        """Replace each function whose module is loaded by a stand-in."""
        for module_name, names in ENTRIES.items():
            module = sys.modules.get(module_name)
            if module is None or module_name not in self.finder.files:
                continue
            for name in names:
                stock = getattr(module, name, None)
                if stock is not None:
                    stand_in = self._stand_in(module, name, stock)
                    setattr(module, name, stand_in)
                    self.placed.append((module, name, stock, stand_in))

    def _stand_in(self, module: ModuleType, name: str, stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def decide_first(*args: Any, **kwargs: Any) -> Any:
            self.finder.decide()
            self.take_away()
            return getattr(module, name)(*args, **kwargs)

        return decide_first

    def take_away(self) -> None:
        """Put the stock functions back, except where something else has replaced the stand-in."""
        while self.placed:
            module, name, stock, stand_in = self.placed.pop()
            if getattr(module, name) is stand_in:
                setattr(module, name, stock)
