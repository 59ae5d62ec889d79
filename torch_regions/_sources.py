"""Makes `inspect.getsource` find a class that an extension file defines.

Python looks for a class in the file of the class's module. That module is stock's, as pickling demands, but the class
is written in the overlay's file.
"""

from __future__ import annotations

import inspect
import weakref
from functools import wraps
from typing import Any


_files: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def register(cls: type, path: str) -> None:
    """Record `path` as the file of `cls` and of the classes inside it."""
    if not _files:
        _teach_inspect()
    _files[cls] = path
    for inner in vars(cls).values():
        if isinstance(inner, type) and inner.__qualname__.startswith(cls.__qualname__ + "."):
            register(inner, path)


def _teach_inspect() -> None:
    if getattr(inspect.getfile, "_torch_regions", False):
        return
    original = inspect.getfile

    @wraps(original)
    def getfile(object: Any) -> str:
        path = _files.get(object) if isinstance(object, type) else None
        return path if path is not None else original(object)

    getfile._torch_regions = True  # type: ignore[attr-defined]
    inspect.getfile = getfile
