"""Overlay of torch._functorch.compile_utils: a graph of calls of regions is not copied where that changes nothing.

Of a repeated block, each call has a dozen operands and as many results, and the graph around the calls has hardly
anything else. The partitioner copies it to merge equal operators, of which there are none between calls of different
operands; and it writes the backward's Python code each time that it has moved a node.
"""

from __future__ import annotations

from collections.abc import Hashable

from torch._higher_order_ops.region_metadata import has_calls
from torch.fx import _lazy_graph_module
from torch.fx.graph import CodeGen, Graph
from torch.fx.graph_module import GraphModule

from torch_regions.overlay import replaces, stock


def _may_have_equals(graph: Graph) -> bool:
    """Whether two operators of ``graph`` may be one.

    As long as none are, an operand is what it is: nothing has to be substituted to compare them.
    """
    seen: set[Hashable] = set()
    for node in graph.nodes:
        if node.op == "call_function":
            try:
                key = node.target, node.args, tuple(node.kwargs.items())
                if key in seen:  # or only nearly equal, as 1 and True are
                    return True
                seen.add(key)
            except TypeError:
                return True
    return False


@replaces
def fx_graph_cse(fx_g: Graph) -> Graph:
    if not has_calls(fx_g) or _may_have_equals(fx_g):
        return stock("torch._functorch.compile_utils:fx_graph_cse")(fx_g)  # type: ignore[no-any-return]
    from torch._inductor.pattern_matcher import compute_mutation_region_ids

    compute_mutation_region_ids(fx_g)
    fx_g.set_codegen(CodeGen())  # that of the copy
    return fx_g


@replaces
def raise_getitems(gm: GraphModule) -> GraphModule:
    # The forward is lazy already; the backward was, before it was reordered. Of a lazy module no code is written before
    # it runs.
    if _lazy_graph_module._use_lazy_graph_module_flag and type(gm).__mro__[1] is GraphModule and has_calls(gm.graph):
        lazy = _lazy_graph_module._LazyGraphModule.from_graphmodule(gm)
        lazy.meta.update(gm.meta)
        gm = lazy
    return stock("torch._functorch.compile_utils:raise_getitems")(gm)  # type: ignore[no-any-return]
