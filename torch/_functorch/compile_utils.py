"""Overlay of torch._functorch.compile_utils: does not regenerate a backward's code after each move.

Each call of a region has a dozen operands and as many results, and the graph around the calls has little else. The
partitioner regenerates the backward's Python code each time that it moves a node.
"""

from __future__ import annotations

from torch._higher_order_ops.region_metadata import has_calls
from torch.fx import _lazy_graph_module
from torch.fx.graph_module import GraphModule

from torch_regions.overlay import replaces, stock


@replaces
def raise_getitems(gm: GraphModule) -> GraphModule:
    # The forward is lazy already; the backward was until it was reordered. A lazy module generates code only if it
    # runs.
    if _lazy_graph_module._use_lazy_graph_module_flag and type(gm).__mro__[1] is GraphModule and has_calls(gm.graph):
        lazy = _lazy_graph_module._LazyGraphModule.from_graphmodule(gm)
        lazy.meta.update(gm.meta)
        gm = lazy
    return stock("torch._functorch.compile_utils:raise_getitems")(gm)  # type: ignore[no-any-return]
