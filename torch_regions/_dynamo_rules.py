"""Makes Dynamo treat the overlay's files as torch's own.

Dynamo decides by file name what to trace, what to skip and which frames to leave out of the stack that it shows a
user. The wrappers here pass it another name for an overlay file: that of its stock file, or the one that stock would
give the module. For a file of the loader they pass a name in Dynamo's folder.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from torch_regions._fingerprint import module_path


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# module -> its functions that are wrapped here. The manifest has their hashes, under [loader].
MODULES: dict[str, tuple[str, ...]] = {
    "torch._dynamo.trace_rules": ("_as_posix_path", "is_torch", "is_torch_inline_allowed"),
    "torch._dynamo.guards": ("uninteresting_files",),
    "torch.fx.experimental.symbolic_shapes": ("uninteresting_files",),
}


def aliases(files: dict[str, str]) -> dict[str, str]:
    """Overlay file -> its stock file, or where stock would have one: the rules are about folders, too."""
    torch_dir = os.path.dirname(sys.modules["torch"].__file__ or "")
    found = {}
    for module, path in files.items():
        beside = os.path.join(torch_dir, *module.split(".")[1:])
        new = os.path.join(beside, "__init__.py") if os.path.basename(path) == "__init__.py" else beside + ".py"
        found[path] = module_path(torch_dir, module) or new
    own = os.path.dirname(os.path.abspath(__file__))
    for folder in (own, os.path.join(own, "_report")):
        for entry in os.scandir(folder):
            if entry.name.endswith(".py"):
                beside = os.path.relpath(entry.path, own)
                found[entry.path] = os.path.join(torch_dir, "_dynamo", "torch_regions", beside)
    return found


def _judged_as_stock(function: Callable[..., Any], known: dict[str, str]) -> Callable[..., Any]:
    @wraps(function)
    def judge(filename: str, *args: Any, **kwargs: Any) -> Any:
        return function(known.get(filename, filename), *args, **kwargs)

    return judge


def _with_overlay_files(function: Callable[..., Any], known: dict[str, str]) -> Callable[..., Any]:
    cached: set[str] | None = None

    @wraps(function)
    def files() -> set[str]:
        nonlocal cached
        if cached is None:
            stock = function()
            # A frame in a file that stock does not have is never the program's.
            new = (ours for ours, theirs in known.items() if theirs in stock or not os.path.exists(theirs))
            cached = stock | set(new)
        return cached

    return files


def take_back(module: ModuleType) -> None:
    """Undo `apply`."""
    for name in MODULES.get(module.__name__, ()):
        function = getattr(module, name)
        if hasattr(function, "_torch_regions"):
            setattr(module, name, function.__wrapped__)


def apply(module: ModuleType, files: dict[str, str]) -> None:
    """Wrap the functions of `module` that decide by file name, if it is one of MODULES."""
    names = MODULES.get(module.__name__)
    if names is None:
        return
    known = aliases(files)
    make = _with_overlay_files if "uninteresting_files" in names else _judged_as_stock
    for name in names:
        function = getattr(module, name)
        if not hasattr(function, "_torch_regions"):
            wrapped = make(function, known)
            wrapped._torch_regions = True  # type: ignore[attr-defined]
            setattr(module, name, wrapped)
