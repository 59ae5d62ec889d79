"""The user's stack at a call, as nodes have it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch.fx
from torch._dynamo.regions.frame import PerFrame
from torch.fx.experimental.symbolic_shapes import uninteresting_files


class _Latest:
    """Where in the program a stack trace was last asked for, and what it was there."""

    at: Any = None
    text = ""


_LATEST = PerFrame(lambda _: _Latest())


def stack_trace(tx: Any) -> str:
    """The user's stack at ``tx``, as nodes have it."""
    frames: list[Any] = []
    location: list[Any] = []
    frame: Any = tx
    while frame is not None:
        frames += (frame,)
        location += (frame.f_code, frame.current_instruction, frame.lineno)
        frame = frame.parent
    latest = _LATEST.of(tx.output)
    if latest.at != location:
        users = [frame.frame_summary() for frame in frames if not frame.is_co_filename_from_nn_modules()]
        summaries = [f for f in users if f.filename not in uninteresting_files()]
        latest.at, latest.text = location, "".join(traceback.StackSummary.from_list(summaries[::-1]).format())
    return latest.text


def proxies_of(tracer: Any) -> Callable[[torch.fx.Node], torch.fx.Proxy]:
    """A ``proxy_factory_fn`` for the tracer's ``create_proxy``, which gives each node the user's stack.

    Dynamo formats the stack for each node that has none, and a call of a region makes many nodes at one place.
    """

    def proxy(node: torch.fx.Node) -> torch.fx.Proxy:
        if "stack_trace" not in node.meta:
            node.meta["stack_trace"] = stack_trace(tracer.output_graph.current_tx)
        return tracer.proxy(node)  # type: ignore[no-any-return]

    return proxy
