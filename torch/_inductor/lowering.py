"""Overlay of torch._inductor.lowering: the results of a region are already what the caller may use."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import register_lowering

from torch_regions.overlay import replaces


@replaces
@register_lowering(torch.ops.higher_order.invoke_subgraph, type_promotion_kind=None)
def invoke_subgraph(subgraph_fn: Any, identifier: str, *operands: Any) -> list[Any]:
    # See Note [The memory of a region's outputs]: views among them, so no box is put around them here.
    return ir.InvokeSubgraph.create(subgraph_fn, *operands)
