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

from torch_regions.overlay import replaces


@replaces("OutputGraph.dedup_pass")
def dedup_pass(self: Any) -> dict[str, torch.fx.GraphModule]:
    """Outlines the regions that the program calls, then, under the flag, what repeats."""
    frame, tracker = FRAME.of(self), self.region_tracker
    outliner = Outliner(tracker, self.install_subgraph, frame.inside)
    if not (tracker.began_with_grad or self.export):
        tracker.open_graph = self.graph
    cut_out_calls(self.graph, frame.outermost, outliner)
    if config.use_graph_deduplication:
        outline_repeats(outliner, self.graph, 0)
    return outliner.bodies
