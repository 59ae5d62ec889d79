"""Overlay of torch._inductor.compile_fx: passes regions only to wrappers that can call them.

Inductor's C++ and FX wrappers (``cpp_wrapper``, AOTInductor) have no code for a call of a region and raise. For these
wrappers, regions are inlined first, so the program compiles as without regions. So are regions if one draws random
numbers and the program's ``options``, of which Dynamo does not know, make Inductor run draws where they stand. The
capabilities of the C++ compiler are probed in the background (Note [The compiler is asked early] in cpu_vec_isa.py). A
graph with calls of regions, a backward too, is compiled as a program with regions (Note [Off means off] in
regions/switch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.regions.stack_room import call_with_room
from torch._dynamo.regions.switch import compiling, has_regions
from torch._functorch._aot_autograd.region_aliases import follow_operands, follow_operands_in_all
from torch._functorch._aot_autograd.region_seeds import (
    draws,
    give_seeds,
    is_joint_body,
    merge_seeds,
    take_seeds,
)
from torch._higher_order_ops.passes.inline_invoke_subgraph import inline_invoke_subgraph
from torch._higher_order_ops.region_metadata import calls_with_bodies, has_calls
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.cpu_vec_isa import ask_early
from torch._inductor.regions import lowering as _lowering_of_calls  # noqa: F401 -- it registers itself
from torch._inductor.utils import InputType
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule

from torch_regions.overlay import replaces, stock


def _calls_regions(graph: Any) -> bool:
    return isinstance(graph, GraphModule) and has_calls(graph.graph)


def _draws_in_bodies(graph: GraphModule) -> bool:
    return any(draws(body) for _, _, body in calls_with_bodies(graph))


@replaces
def compile_fx(
    model_: GraphModule,
    example_inputs_: Sequence[InputType],
    inner_compile: Callable[..., Any] = compile_fx_inner,
    config_patches: dict[str, Any] | None = None,
    decompositions: dict[OpOverload, Callable[..., Any]] | None = None,
    ignore_shape_env: bool = False,
    compile_region_name: str | None = None,
) -> Any:
    """As stock's. Stock calls this again under ``config_patches``, so only that call reads the settings in force."""
    given = (model_, example_inputs_, inner_compile, config_patches, decompositions, ignore_shape_env)
    compile_it = stock("torch._inductor.compile_fx:compile_fx")
    if not _calls_regions(model_):
        with compiling(has_regions()):
            return compile_it(*given, compile_region_name)
    with compiling(True):
        in_place = config.fallback_random or config.align_random_eager
        if config.cpp_wrapper or config.fx_wrapper or (in_place and _draws_in_bodies(model_)):
            inline_invoke_subgraph(model_)
            model_.recompile()
        if not config_patches:
            ask_early(model_, example_inputs_)
        return call_with_room(compile_it, *given, compile_region_name)


@replaces
def _compile_fx_inner(
    gm: GraphModule, example_inputs: Sequence[InputType], compile_region_name: str | None = None, **graph_kwargs: Any
) -> Any:
    compile_it = stock("torch._inductor.compile_fx:_compile_fx_inner")
    with compiling(has_regions() or _calls_regions(gm)):
        return compile_it(gm, example_inputs, compile_region_name, **graph_kwargs)


@replaces
def _recursive_joint_graph_passes(
    gm: GraphModule, skip_invoke_subgraph: bool = False, input_device: torch.device | None = None
) -> GraphModule:
    run_passes = stock("torch._inductor.compile_fx:_recursive_joint_graph_passes")
    # See Note [A body is given its seeds]
    is_body = is_joint_body(gm)
    gm = run_passes(gm, skip_invoke_subgraph, input_device)
    for _, name, body in calls_with_bodies(gm):
        if skip_invoke_subgraph and not name.startswith("partitioned_") and draws(body):
            # The partitioner was not given this body, through which no gradient flows.
            body = _recursive_joint_graph_passes(body, False, input_device)
            setattr(gm, name, body)
        take_seeds(body)
    give_seeds(gm)
    merge_seeds(gm)
    if is_body:
        take_seeds(gm)
    if has_regions():
        # See Note [What a partitioned region returns]. Last: equal operators that make seeds are no equal values.
        follow_operands(gm, partitioned_next=is_body or (skip_invoke_subgraph and has_calls(gm.graph)))
    return gm


@replaces
def fake_tensor_prop(
    gm: GraphModule, example_inputs: Sequence[InputType], force_allow_non_fake_inputs: bool = False
) -> FakeTensorMode:
    propagate = stock("torch._inductor.compile_fx:fake_tensor_prop")
    mode = propagate(gm, example_inputs, force_allow_non_fake_inputs)
    if has_regions():
        # See Note [What a partitioned region returns]
        follow_operands_in_all(gm)
    return mode  # type: ignore[no-any-return]
