"""Overlay of torch._dynamo.output_graph: at the end of a frame, cuts regions out of its graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch._dynamo import config
from torch._dynamo.graph_deduplication import outline_repeats
from torch._dynamo.regions.frame import FRAME, release
from torch._dynamo.regions.options import why_no_bodies
from torch._dynamo.regions.outcomes import RegionInlineReason
from torch._dynamo.regions.outline.account import account
from torch._dynamo.regions.outline.calls import cut_out_calls
from torch._dynamo.regions.outline.copies import Copied, copy_for_the_rest, makes_functional
from torch._dynamo.regions.outline.legality import has_memory_budget
from torch._dynamo.regions.outline.outliner import Outliner
from torch._dynamo.regions.outline.renaming import guard_alike
from torch._dynamo.regions.trace.events import RECORDERS

from torch_regions.overlay import replaces, stock


@replaces("OutputGraph.subtracer")
@contextlib.contextmanager
def subtracer(self: Any, source_target: Any, prior_tracer: Any, description: str | None = None) -> Iterator[Any]:
    """A tracer for the body of an operator. What the body reads is also read by the region calls around it."""
    plain = stock("torch._dynamo.output_graph:OutputGraph.subtracer")
    with plain(self, source_target, prior_tracer, description) as tracer:
        try:
            yield tracer
        finally:
            if RECORDERS.of(self):
                tracer.parent.traced_sources.update(tracer.traced_sources)


@replaces("OutputGraph.dedup_pass")
def dedup_pass(self: Any) -> dict[str, torch.fx.GraphModule]:
    """Outlines the regions that the program calls and then, under the flag, those that repeat."""
    frame, tracker = FRAME.of(self), self.region_tracker
    outliner = Outliner(tracker, self.install_subgraph, frame.inside)
    tracker.copied = Copied(frame.outermost) if tracker.began_with_grad else None
    if not self.export and (not tracker.began_with_grad or makes_functional(self.compiler_fn)):
        tracker.open_graph = self.graph
    tracker.switches = not self.export
    tracker.bodies = tracker.bodies_in(self.nn_modules)
    refused = why_no_bodies() or (RegionInlineReason.MEMORY_BUDGET if has_memory_budget(self.graph) else None)
    cut_out_calls(self.graph, frame.outermost, outliner, refused)
    if config.use_graph_deduplication and refused is None:
        outline_repeats(outliner, self.graph, 0)
    copy_for_the_rest(self.graph)
    account(self, outliner)
    return outliner.bodies


@replaces("OutputGraph.call_user_compiler")
def call_user_compiler(self: Any, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
    """What the backend compiled.  See Note [A body serves sizes of several names]."""
    compiled = stock("torch._dynamo.output_graph:OutputGraph.call_user_compiler")(self, gm, example_inputs)
    guard_alike(self.shape_env)
    return compiled


@replaces("OutputGraph.cleanup")
def cleanup(self: Any) -> None:
    """Releases the program's objects that region calls kept, together with stock's own cleanup.

    A weak reference of the program shows whether an object lives, and this graph is part of reference cycles. Without
    this, objects would live until Python's next garbage collection, or as long as a backward that is compiled later.
    """
    stock("torch._dynamo.output_graph:OutputGraph.cleanup")(self)
    release(self)
    cache: Any = self.tracing_context.hop_dispatch_set_cache.get_cache(torch.ops.higher_order.invoke_subgraph)
    if cache is not None:
        cache.forget_calls()
