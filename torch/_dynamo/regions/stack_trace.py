"""The user's stack, formatted as in ``node.meta["stack_trace"]``."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch.fx
from torch._dynamo.regions.frame import PerFrame
from torch.fx.experimental.symbolic_shapes import uninteresting_files


class _Latest:
    """The location of the latest stack trace, and its text."""

    at: Any = None
    text = ""


_LATEST = PerFrame(lambda _: _Latest())


def stack_trace(tx: Any) -> str:
    """The user's stack at ``tx``, formatted as in ``node.meta["stack_trace"]``."""
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
    """A ``proxy_factory_fn`` for the tracer's ``create_proxy`` that sets each node's stack trace.

    Dynamo formats the stack anew for each node without one, and a region call makes many nodes at one location.
    """

    def proxy(node: torch.fx.Node) -> torch.fx.Proxy:
        if "stack_trace" not in node.meta:
            node.meta["stack_trace"] = stack_trace(tracer.output_graph.current_tx)
        return tracer.proxy(node)  # type: ignore[no-any-return]

    return proxy
