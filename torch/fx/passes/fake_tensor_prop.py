"""Overlay of torch.fx.passes.fake_tensor_prop: the body of a region that is as it was traced is not run again."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.region_metadata import is_as_traced, known_results
from torch.fx import Node

from torch_regions.overlay import replaces, stock


@replaces("FakeTensorProp.run_node")
def run_node(self: Any, n: Node) -> Any:
    if n.target is torch.ops.higher_order.invoke_subgraph and n.args[1] not in self.seen_subgraphs:
        body: Any = getattr(self.module, str(getattr(n.args[0], "target", "")), None)
        operands = tuple(a.meta.get("val") if isinstance(a, Node) else a for a in n.args[2:])
        if is_as_traced(body):
            with self._mode:
                known = known_results(body, operands)
            if known is not None:
                # Each node of the body has the value that running it would give.
                self.seen_subgraphs.add(n.args[1])
    return stock("torch.fx.passes.fake_tensor_prop:FakeTensorProp.run_node")(self, n)
