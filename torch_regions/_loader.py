"""The loader of an overlay file."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING

import torch_regions._switch as _switch


if TYPE_CHECKING:
    from types import CodeType, ModuleType


class OverlayLoader(SourceFileLoader):
    """Executes the code of an overlay file that was compiled when the overlay was verified."""

    def __init__(self, name: str, path: str, codes: dict[str, CodeType]) -> None:
        super().__init__(name, path)
        self.codes = codes

    def get_code(self, fullname: str) -> CodeType:
        code = self.codes.get(fullname) or super().get_code(fullname)
        if code is None:
            raise ImportError(f"no code for {fullname}", name=fullname)
        return code

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if module.__name__ == _switch.MODULE:
            _switch.listen(module)
