"""Overlay of torch._dynamo.convert_frame: a compile has room for its calls, and looks only at its own garbage."""

from __future__ import annotations

from typing import Any

from torch._dynamo import config
from torch._dynamo.region_frame import call_with_room
from torch._dynamo.region_garbage import compiling, set_garbage_aside

from torch_regions.overlay import replaces, stock


@replaces("ConvertFrameAssert.__call__")
def __call__(self: Any, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, *, skip: int = 0) -> Any:
    # A marked region sets it aside when it is called.
    convert = stock("torch._dynamo.convert_frame:ConvertFrameAssert.__call__")
    with compiling():
        if config.use_graph_deduplication:
            set_garbage_aside()
        return call_with_room(convert, self, frame, cache_entry, hooks, frame_state, skip=skip + 2)
