"""Overlay of torch._dynamo.convert_frame: under the flag, the garbage collector does not go over the whole process.

Note [Garbage of a compile]
Compiling makes objects by the hundred thousand, so Python's collector passes over all that there are several times:
the program's own, torch's, the model's. In a process with a large model a pass takes a quarter of a second and finds
next to nothing. Meanwhile what is there when a frame's compile begins is set aside (``gc.freeze``), and only what the
compile makes is looked at. Afterwards all is as before. Nothing is set aside if the program has frozen objects itself,
or has turned the collector off.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

from torch._dynamo import config

from torch_regions.overlay import replaces, stock


@contextlib.contextmanager
def only_new_garbage() -> Iterator[None]:
    """Lets the garbage collector look only at what is made meanwhile; see Note [Garbage of a compile]."""
    ours = gc.isenabled() and gc.get_freeze_count() == 0
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


@replaces("ConvertFrameAssert.__call__")
def __call__(self: Any, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, *, skip: int = 0) -> Any:
    convert = stock("torch._dynamo.convert_frame:ConvertFrameAssert.__call__")
    with only_new_garbage() if config.use_graph_deduplication else contextlib.nullcontext():
        return convert(self, frame, cache_entry, hooks, frame_state, skip=skip + 1)
