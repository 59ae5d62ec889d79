"""Overlay of torch._functorch.compile_utils: the code of a backward with calls of regions is not written for each move.

Of a repeated block, each call has a dozen operands and as many results, and the graph around the calls has hardly
anything else. The partitioner writes the backward's Python code each time that it has moved a node.
"""

from __future__ import annotations

from torch._higher_order_ops.region_metadata import has_calls
from torch.fx import _lazy_graph_module
from torch.fx.graph_module import GraphModule

from torch_regions.overlay import replaces, stock


@replaces
def raise_getitems(gm: GraphModule) -> GraphModule:
    # The forward is lazy already; the backward was, before it was reordered. Of a lazy module no code is written before
    # it runs.
    if _lazy_graph_module._use_lazy_graph_module_flag and type(gm).__mro__[1] is GraphModule and has_calls(gm.graph):
        lazy = _lazy_graph_module._LazyGraphModule.from_graphmodule(gm)
        lazy.meta.update(gm.meta)
        gm = lazy
    return stock("torch._functorch.compile_utils:raise_getitems")(gm)  # type: ignore[no-any-return]
