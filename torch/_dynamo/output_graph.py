"""Overlay of torch._dynamo.output_graph: at the end of a frame, regions are cut out of its graph."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch._dynamo import config
from torch._dynamo.graph_deduplication import outline_repeats
from torch._dynamo.regions.frame import FRAME
from torch._dynamo.regions.outline.calls import cut_out_calls
from torch._dynamo.regions.outline.outliner import Outliner

from torch_regions.overlay import replaces, stock


@replaces("OutputGraph.dedup_pass")
def dedup_pass(self: Any) -> dict[str, torch.fx.GraphModule]:
    """Outlines the regions that the program calls, then, under the flag, what repeats."""
    frame, tracker = FRAME.of(self), self.region_tracker
    outliner = Outliner(tracker, self.install_subgraph, frame.inside)
    if not (tracker.began_with_grad or self.export):
        tracker.open_graph = self.graph
    tracker.switches = not self.export
    cut_out_calls(self.graph, frame.outermost, outliner)
    if config.use_graph_deduplication:
        outline_repeats(outliner, self.graph, 0)
    return outliner.bodies


@replaces("OutputGraph.cleanup")
def cleanup(self: Any) -> None:
    """Lets go of what the calls of regions kept of the program's objects, with all else that tracing kept.

    A weak reference of the program tells whether an object lives, and this graph is part of a cycle: without this,
    objects would live until Python's next collection of garbage, or as long as a backward that is compiled later.
    """
    stock("torch._dynamo.output_graph:OutputGraph.cleanup")(self)
    vars(self).pop("region_states", None)
    cache: Any = self.tracing_context.hop_dispatch_set_cache.get_cache(torch.ops.higher_order.invoke_subgraph)
    if cache is not None:
        cache.forget_calls()
