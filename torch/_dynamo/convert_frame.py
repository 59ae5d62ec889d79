"""Overlay of torch._dynamo.convert_frame: decides, when a frame begins, whether it is compiled with regions.

Under the flag, the compile gets more stack for its calls here; a marked region gets it when it is called. An export has
the regions that the program marks, and no others.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo import config
from torch._dynamo.regions.options import without_flag_in
from torch._dynamo.regions.stack_room import call_with_room
from torch._dynamo.regions.switch import compiling, is_compiling

from torch_regions.overlay import replaces, stock


@replaces("ConvertFrameAssert.__call__")
def __call__(self: Any, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, *, skip: int = 0) -> Any:
    convert = stock("torch._dynamo.convert_frame:ConvertFrameAssert.__call__")
    with without_flag_in(self._export), compiling(config.use_graph_deduplication):
        if not config.use_graph_deduplication:
            return convert(self, frame, cache_entry, hooks, frame_state, skip=skip + 1)
        return call_with_room(convert, self, frame, cache_entry, hooks, frame_state, skip=skip + 2)


@replaces
def compile_frame(
    code: Any,
    globals: Any,
    locals: Any,
    builtins: Any,
    closure: Any,
    compiler_fn: Any,
    one_graph: bool,
    restart_reasons: set[str],
    *,
    export: bool = False,
    export_constraints: Any = None,
    frame_state: Any = None,
    distributed_state: Any = None,
    package: Any = None,
) -> Any:
    run = stock("torch._dynamo.convert_frame:compile_frame")
    frame = (code, globals, locals, builtins, closure, compiler_fn, one_graph, restart_reasons)
    how = {"export": export, "export_constraints": export_constraints, "frame_state": frame_state}
    how |= {"distributed_state": distributed_state, "package": package}
    if is_compiling():
        return run(*frame, **how)
    # An exporter or an ahead-of-time compile captures the frame.
    with without_flag_in(export), compiling(config.use_graph_deduplication):
        return run(*frame, **how)
