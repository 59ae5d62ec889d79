"""Overlay of torch._functorch._aot_autograd.graph_compile: prepares and corrects the partitioning of regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from torch_regions.overlay import replaces, stock


@replaces
def run_joint_graph_passes_on_hops(
    joint_gm: torch.fx.GraphModule,
    joint_inputs: Any,
    aot_config: Any,
    *,
    default_partition_fn: Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]] | None = None,
) -> torch.fx.GraphModule:
    from torch._functorch._aot_autograd.region_aliases import say_aliases_of_regions
    from torch._functorch._aot_autograd.region_checkpoints import save_between_checkpoints
    from torch._functorch._aot_autograd.region_nesting import inner_bodies
    from torch._functorch._aot_autograd.region_seeds import give_seeds, note_joint_bodies
    from torch._higher_order_ops.region_metadata import has_calls

    partition = stock("torch._functorch._aot_autograd.graph_compile:run_joint_graph_passes_on_hops")
    if not any(has_calls(part.graph) for part in joint_gm.modules() if isinstance(part, GraphModule)):
        return partition(joint_gm, joint_inputs, aot_config, default_partition_fn=default_partition_fn)  # type: ignore[no-any-return]
    # See Note [A region inside a region is partitioned first]
    for body in inner_bodies(joint_gm):
        run_joint_graph_passes_on_hops(body, joint_inputs, aot_config, default_partition_fn=default_partition_fn)
    # See Note [A checkpoint ends where a call begins]
    save_between_checkpoints(joint_gm)
    # See Note [A body is given its seeds]
    note_joint_bodies(joint_gm)
    joint_gm = partition(joint_gm, joint_inputs, aot_config, default_partition_fn=default_partition_fn)
    give_seeds(joint_gm)
    # See Note [What a partitioned region returns]
    say_aliases_of_regions(joint_gm)
    return joint_gm
