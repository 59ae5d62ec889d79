"""Overlay of torch.utils._traceback: finds the short name of a file once for each file.

Each guard names the line of the program that made it, so the few files of a program are named thousands of times. The
short name depends only on the path.
"""

from __future__ import annotations

import functools
from typing import Any

from torch_regions.overlay import replaces, stock


@functools.lru_cache(maxsize=1024)
def _short(path: str) -> str:
    return stock("torch.utils._traceback:shorten_filename")(path)  # type: ignore[no-any-return]


@replaces
def shorten_filename(fn: Any, *, base: Any = None) -> Any:
    if base is None and type(fn) is str:
        return _short(fn)
    return stock("torch.utils._traceback:shorten_filename")(fn, base=base)
