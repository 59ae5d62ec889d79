"""Names the overlay in an internal compiler error that passed through one of its files: it is ours to mend."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any


LINE = "torch-regions is on; TORCH_REGIONS=0 runs stock's code"

# Folder of the overlay in use
_root: str | None = None
# Files that every compile passes through, with regions or without. They call stock's function and do nothing that can
# fail, so they count only if the error was raised in them.
_DOORS = tuple(
    os.path.join("torch", *name.split("/"))
    for name in (
        "_dynamo/convert_frame.py",
        "_dynamo/output_graph.py",
        "_dynamo/regions/stack_room.py",
        "_dynamo/regions/switch.py",
        "_inductor/compile_fx.py",
    )
)


def watch(root: str) -> None:
    """The overlay at `root` is in use."""
    global _root
    _root = root


def unwatch() -> None:
    """No overlay is in use."""
    global _root
    _root = None


def _internal() -> tuple[type[BaseException], ...]:
    """The error classes that users take for faults of torch; InductorError is a subclass of the second."""
    errors = sys.modules.get("torch._dynamo.exc")
    return (errors.InternalTorchDynamoError, errors.BackendCompilerFailed) if errors is not None else ()


def _came_through(error: BaseException, root: str) -> bool:
    """Whether a traceback has a frame in a file of the overlay at `root`."""
    ours = os.path.join(root, "torch") + os.sep
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(
        file.startswith(ours) and (i == len(files) - 1 or os.path.relpath(file, root) not in _DOORS)
        for i, file in enumerate(files)
    )


def name_the_overlay(error: Any) -> None:
    """Add `LINE` to an internal error that came through an overlay file."""
    if _root is None or not isinstance(error, _internal()) or not _came_through(error, _root):
        return
    message = str(error.args[0]) if error.args else ""
    if LINE not in message:
        error.args = (f"{message.rstrip()}\n\n{LINE}\n", *error.args[1:])
