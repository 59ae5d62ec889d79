"""The user's stack at a call, as nodes have it."""

from __future__ import annotations

import traceback
from typing import Any

from torch._dynamo.regions.frame import PerFrame
from torch.fx.experimental.symbolic_shapes import uninteresting_files


class _Latest:
    """Where in the program a stack trace was last asked for, and what it was there."""

    at: Any = None
    text = ""


_LATEST = PerFrame(lambda _: _Latest())


def stack_trace(tx: Any) -> str:
    """The user's stack at ``tx``, as nodes have it."""
    frames = []
    frame: Any = tx
    while frame is not None:
        frames.append(frame)
        frame = frame.parent
    location = tuple([(frame.f_code, frame.current_instruction, frame.lineno) for frame in frames])
    latest = _LATEST.of(tx.output)
    if latest.at != location:
        users = [frame.frame_summary() for frame in frames if not frame.is_co_filename_from_nn_modules()]
        summaries = [f for f in users if f.filename not in uninteresting_files()]
        latest.at, latest.text = location, "".join(traceback.StackSummary.from_list(summaries[::-1]).format())
    return latest.text
