"""Overlay of torch._dynamo.output_graph: at the end of a frame, regions are cut out of its graph."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch._dynamo import config
from torch._dynamo.graph_deduplication import outline_repeats
from torch._dynamo.region_cutting import cut_out_calls
from torch._dynamo.region_outlining import Outliner

from torch_regions.overlay import replaces


@replaces("OutputGraph.dedup_pass")
def dedup_pass(self: Any) -> dict[str, torch.fx.GraphModule]:
    """Outlines the regions that the program calls, then, under the flag, what repeats."""
    outliner = Outliner(self)
    cut_out_calls(self, outliner)
    if config.use_graph_deduplication:
        outline_repeats(outliner, self.graph, 0)
    return outliner.bodies
