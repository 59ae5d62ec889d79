"""Overlay of torch._dynamo.output_graph: at the end of a frame, regions are cut out of its graph.

And the inputs of a graph that come into being at one place of the program have one stack trace, formatted once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch._dynamo import config
from torch._dynamo.code_context import code_context
from torch._dynamo.graph_deduplication import outline_repeats
from torch._dynamo.regions.frame import FRAME
from torch._dynamo.regions.outline.calls import cut_out_calls
from torch._dynamo.regions.outline.outliner import Outliner
from torch._dynamo.regions.stack_trace import stack_trace
from torch._dynamo.source import LocalSource, ParamBufferSource
from torch.fx.node import Target

from torch_regions.overlay import replaces, stock


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


@replaces("SubgraphTracer._create_proxy")
def _create_proxy(
    self: Any,
    kind: str,
    target: Target,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str | None = None,
    type_expr: Any = None,
    proxy_factory_fn: Any = None,
) -> torch.fx.Proxy:
    tx = self.output_graph.current_tx
    ordinary = kind == "placeholder" and self.parent is None and not (args or kwargs or proxy_factory_fn)
    if not ordinary or self._orig_gm_meta is not None or "orig_graphmodule" in code_context.get_context(tx.f_code):
        make = stock("torch._dynamo.output_graph:SubgraphTracer._create_proxy")
        return make(self, kind, target, args, kwargs, name, type_expr, proxy_factory_fn)  # type: ignore[no-any-return]
    node = self.create_node(kind, target, (), {}, name, type_expr)
    if tx.nn_module_stack:
        node.meta["nn_module_stack"] = tx.nn_module_stack.copy()
    node.stack_trace = stack_trace(tx)
    return self.proxy(node)  # type: ignore[no-any-return]


@replaces("OutputGraph.add_fqn_info_for_inlined_modules")
def add_fqn_info_for_inlined_modules(self: Any, inlined_module: Any, source: Any) -> None:
    # Names of parameters by where they are, for exported graphs: each module's again for each module around it.
    regions = config.use_graph_deduplication or FRAME.of(self).outermost
    if self.export or config.install_free_tensors or not regions:
        add = stock("torch._dynamo.output_graph:OutputGraph.add_fqn_info_for_inlined_modules")
        add(self, inlined_module, source)
    elif isinstance(source, LocalSource):
        _note_names(self, inlined_module, source)


def _note_names(output: Any, module: Any, source: LocalSource) -> None:
    """Notes what parameters and buffers of ``module`` are called in the graph's metadata."""
    owners: dict[str, str] = {}
    noted = output.dynamo_flat_name_to_original_fqn
    for kind in ("named_parameters", "named_buffers"):
        every = getattr(module, kind, None)
        if getattr(every, "__func__", None) is not getattr(torch.nn.Module, kind):
            continue  # the program's own, which may do anything
        for name, _ in every():
            owner, _, leaf = name.rpartition(".")
            if not leaf.isidentifier():  # Dynamo words the way to it otherwise
                noted[output.module_key_name(output.get_chained_param_buffer_source(source, name).name)] = name
                continue
            if owner not in owners:
                above = output.get_chained_attr_source(source, owner) if owner else source
                owners[owner] = output.module_key_name(ParamBufferSource(above, "_").name)[:-1]
            noted[owners[owner] + leaf] = name
