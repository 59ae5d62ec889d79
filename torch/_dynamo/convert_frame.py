"""Overlay of torch._dynamo.convert_frame: under the flag, the garbage collector does not go over the whole process.

Note [Garbage of a compile]
Compiling makes objects by the hundred thousand, so Python's collector passes over all that there are several times:
the program's own, torch's, the model's. In a process with a large model a pass takes a quarter of a second and finds
next to nothing. Meanwhile what is there when a frame's compile begins is set aside (``gc.freeze``), and only what the
compile makes is looked at, and only after more of it was made than Python's threshold says: most of it lives as long
as the compile. Afterwards all is as before. Nothing is set aside if the program has frozen objects itself, or has
turned the collector off.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

from torch._dynamo import config

from torch_regions.overlay import replaces, stock


# How many objects more than are gone may be made between two collections. A compile of a layer makes some ten thousand.
_THRESHOLD = 20_000


@contextlib.contextmanager
def only_new_garbage() -> Iterator[None]:
    """Lets the garbage collector look only at what is made meanwhile; see Note [Garbage of a compile]."""
    ours = gc.isenabled() and gc.get_freeze_count() == 0
    first, *others = before = gc.get_threshold()
    meanwhile = (max(first, _THRESHOLD), *others)
    if ours:
        gc.freeze()
        if first:  # else it never collects
            gc.set_threshold(*meanwhile)
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()
            if gc.get_threshold() == meanwhile:
                gc.set_threshold(*before)


@replaces("ConvertFrameAssert.__call__")
def __call__(self: Any, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, *, skip: int = 0) -> Any:
    convert = stock("torch._dynamo.convert_frame:ConvertFrameAssert.__call__")
    with only_new_garbage() if config.use_graph_deduplication else contextlib.nullcontext():
        return convert(self, frame, cache_entry, hooks, frame_state, skip=skip + 1)
