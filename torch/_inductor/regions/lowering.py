"""Lowers a call of a region: its body once, and each call to a node that says what it reads, writes and returns.

Stock treats a call as a pure function of its operands whose results are all fresh memory, and compiles the body with
the donations of the graph around it. See Note [The memory of a region's outputs] in memory.py.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch._functorch._aot_autograd.region_seeds import SEEDS, example_of_seeds
from torch._higher_order_ops.metadata_keys import renaming_of
from torch._higher_order_ops.region_metadata import calls_with_bodies, renamings
from torch._inductor import config, ir
from torch._inductor.lowering import lowerings, register_lowering
from torch._inductor.regions.bodies import prepare
from torch._inductor.regions.memory import is_aligned, rebuild, strides_of_body, substitution, translated
from torch._inductor.virtualized import V
from torch.fx.offset_facts import sees_storage


@register_lowering(torch.ops.higher_order.invoke_subgraph, type_promotion_kind=None)
def lower_call(subgraph: Any, identifier: str, *operands: Any) -> list[Any]:
    """The results of a call. They may be views of buffers, so they are not boxed as in stock."""
    given = [ir.InvokeSubgraph.realize_input(x) for x in operands]
    if subgraph.graph is None:
        with _configured(subgraph):
            prepare(subgraph, _example_operands(subgraph))
    symbols = substitution(subgraph.graph, given)
    return _call(subgraph, given, _constrained(subgraph, given, symbols), symbols)


def _configured(subgraph: Any) -> AbstractContextManager[Any]:
    """Sets Inductor's options from the region's mark, and stores them at ``subgraph`` for code generation.

    2.13 has no such options.
    """
    if getattr(subgraph, "inductor_config_patches", None) is None:
        mark = V.graph.current_node.meta.get("custom", {}).get("nested_region_config")
        subgraph.inductor_config_patches = getattr(mark, "inductor_config_patches", None)
    patches, options = subgraph.inductor_config_patches, cast(Any, config)
    return options.patch(patches) if patches else nullcontext()  # type: ignore[no-any-return]


def _example_operands(subgraph: Any) -> list[Any]:
    """The operands of the call being lowered, as fake tensors with eager strides; seeds as the body takes them."""
    taken = subgraph.graph_module.graph.find_nodes(op="placeholder")
    values = _values_of_operands(subgraph, [placeholder.meta.get("val") for placeholder in taken])
    values = [_expanded_in_all(subgraph, index, value) for index, value in enumerate(values)]
    if any(SEEDS in placeholder.meta for placeholder in taken):
        values = [example_of_seeds(t) if SEEDS in t.meta else value for t, value in zip(taken, values, strict=True)]
    return values


def _expanded_in_all(subgraph: Any, index: int, value: Any) -> Any:
    """``value``, an example of an operand; a dense one if the operand has the same rows in this call, but not in all.

    Where rows are the same is metadata that passes change, call by call.
    """
    if not isinstance(value, torch.Tensor) or not (dims := _expanded_dims(value)):
        return value
    bodies = ((call, body) for call, _, body in calls_with_bodies(V.graph.module) if body is subgraph.graph_module)
    operands = (call.args[2 + index] for call, _ in bodies)
    others = [operand.meta.get("val") for operand in operands if isinstance(operand, torch.fx.Node)]
    if others and all(isinstance(other, torch.Tensor) and dims <= _expanded_dims(other) for other in others):
        return value
    return value.new_empty(value.shape)


def _expanded_dims(value: torch.Tensor) -> set[int]:
    numbers = zip(value.shape, value.stride(), strict=True)
    return {k for k, (size, stride) in enumerate(numbers) if type(stride) is int and stride == 0 and size != 1}


def _values_of_operands(subgraph: Any, taken: list[Any]) -> list[Any]:
    node = V.graph.current_node
    effect = node.target is torch.ops.higher_order.with_effects
    eager = node.meta.get("eager_input_vals")
    if eager:
        values = list(eager[0][3 if effect else 2 :])
    else:
        operands = node.args[4 if effect else 2 :]
        values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in operands]
    # See Note [A body serves sizes of several names] in torch/_dynamo/regions/outline/renaming.py.
    if renaming_of(taken, values, renamings()):
        return taken
    # The body's metadata is valid for the strides of its inputs; the strides of this call may have changed since.
    alike = functools.partial(_differ_in_strides_only, in_storage=sees_storage(subgraph.graph_module))
    usable = not eager and len(taken) == len(values) and all(map(alike, taken, values))
    return taken if usable else values


def _differ_in_strides_only(one: Any, other: Any, *, in_storage: bool) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and not isinstance(one, torch.SymInt) and one == other
    looks = [(t.shape, t.dtype, t.device, t.layout, t.storage_offset() if in_storage else 0) for t in (one, other)]
    return looks[0] == looks[1] and all(type(size) is int for size in (*one.stride(), *other.stride(), *one.shape))


def _is_tensor_operand(operand: Any, example: Any) -> bool:
    return isinstance(example, torch.Tensor) and not isinstance(
        operand, (ir.ShapeAsConstantBuffer, ir.GeneratorState, ir.OpaqueObjectState)
    )


def _constrained(subgraph: Any, operands: list[Any], symbols: dict[Any, Any]) -> list[Any]:
    """The operands with the strides and the alignment that the body was compiled for, whatever these are in eager."""
    constrained = []
    for index, (operand, like) in enumerate(zip(operands, subgraph.graph.example_inputs)):
        if _is_tensor_operand(operand, like):
            strides = strides_of_body(like, symbols)
            if not _has_strides(operand, strides):
                operand = _with_strides(operand, strides)
            if index in subgraph.region_memory.aligned and not is_aligned(operand):
                copied = ir.ExternKernel.copy_input(operand)
                operand = _with_strides(copied, strides)
        constrained.append(operand)
    return constrained


def _with_strides(operand: Any, strides: Any) -> Any:
    if all(stride != 0 for stride in strides):
        return ir.ExternKernel.require_exact_strides(operand, strides)
    # Stock makes an expanded operand out of one that is boxed, and only where it is no operand yet.
    boxed = operand if isinstance(operand, ir.TensorBox) else ir.TensorBox(operand)
    return ir.InvokeSubgraph.realize_input(ir.ExternKernel.require_exact_strides(boxed, strides))


def _has_strides(operand: Any, strides: Any) -> bool:
    """Whether an operand has these very strides, such that stock would return it as it is."""
    layout = operand.maybe_get_layout()
    return isinstance(layout, ir.FixedLayout) and [*layout.stride] == [*strides]


def _call(subgraph: Any, given: list[Any], operands: list[Any], symbols: dict[Any, Any]) -> list[Any]:
    """Makes the node of the call, the buffers that it returns and the marks of the operands that it writes to."""
    memory = subgraph.region_memory
    for i in memory.mutated:
        # Readers of the old value must be realized before the call is made.
        V.graph.mark_buffer_mutated(operands[i].get_name())
    # A body whose operands are sizes only makes its results itself.
    devices = [o.get_device() for o in operands if not isinstance(o, ir.ShapeAsConstantBuffer)]
    device = (devices or [layout.device for layout in memory.buffers])[0]
    call = ir.InvokeSubgraph(subgraph=subgraph, operands=operands, layout=ir.MultiOutputLayout(device=device))
    call.outputs = [
        ir.MultiOutput(translated(layout, symbols), call, [(list, i)], skip_size_stride_alignment_checks=True)
        for i, layout in enumerate(memory.buffers)
    ]
    for i in memory.mutated:
        call.mutation_outputs.append(ir.MutationOutput(ir.NoneLayout(device=device), operands[i], call))
    for i in memory.mutated:
        if operands[i].get_name() != given[i].get_name():
            _write_back(given[i], operands[i])
    buffers = [ir.StorageBox(out) for out in call.outputs]
    return [rebuild(output, buffers, operands, symbols) for output in memory.outputs]


def _write_back(original: Any, copied: Any) -> None:
    """Copies the new value back to the operand if the body wrote to a copy made for its strides."""

    def box(x: Any) -> Any:
        return x if isinstance(x, ir.TensorBox) else ir.TensorBox(x)

    lowerings[torch.ops.aten.copy_.default](box(original), box(copied))
