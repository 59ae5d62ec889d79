"""Overlay of torch._inductor.ir: a call of a region that says what it reads, writes and returns.

Stock takes a call for a pure function of its operands whose results are all fresh memory, and compiles the body
with the donations of the graph around it. See Note [The memory of a region's outputs] in region_memory.py. Each operand
of a call is to have the strides that the body was compiled for: where they are numbers, no solver is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor.dependencies import ReadWrites
from torch._inductor.ir import (
    ExternKernel,
    GeneratorState,
    InvokeSubgraph,
    MultiOutput,
    MultiOutputLayout,
    MutationOutput,
    NoneLayout,
    OpaqueObjectState,
    ShapeAsConstantBuffer,
    StorageBox,
    TensorBox,
    is_storage_and_layout,
)
from torch._inductor.virtualized import V

from torch_regions.overlay import replaces, stock


def _example_operands(subgraph: Any) -> list[Any]:
    """The operands of the call that is being lowered, as fake tensors with the strides they had in eager."""
    node = V.graph.current_node
    effect = node.target is torch.ops.higher_order.with_effects
    if eager := node.meta.get("eager_input_vals"):
        return list(eager[0][3 if effect else 2 :])
    operands = node.args[4 if effect else 2 :]
    values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in operands]
    # What is noted in the body is right for the strides that it takes; those of this call may have changed since.
    taken = [placeholder.meta.get("val") for placeholder in subgraph.graph_module.graph.find_nodes(op="placeholder")]
    alike = len(taken) == len(values) and all(map(_differ_in_strides_only, taken, values))
    return taken if alike else values


def _differ_in_strides_only(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and not isinstance(one, torch.SymInt) and one == other
    looks = [(t.shape, t.dtype, t.device, t.layout, t.storage_offset()) for t in (one, other)]
    return looks[0] == looks[1] and all(type(size) is int for size in (*one.stride(), *other.stride(), *one.shape))


def _is_tensor_operand(operand: Any, example: Any) -> bool:
    return isinstance(example, torch.Tensor) and not isinstance(
        operand, (ShapeAsConstantBuffer, GeneratorState, OpaqueObjectState)
    )


def _constrained(subgraph: Any, operands: list[Any], symbols: dict[Any, Any]) -> list[Any]:
    """The operands with the strides that the body was compiled for, whatever those of this call were in eager."""
    from torch._inductor.region_memory import strides_of_body

    compiled_for = subgraph.graph.example_inputs
    return [
        ExternKernel.require_exact_strides(operand, strides_of_body(like, symbols))
        if _is_tensor_operand(operand, like)
        else operand
        for operand, like in zip(operands, compiled_for)
    ]


def _call(subgraph: Any, given: list[Any], operands: list[Any], symbols: dict[Any, Any]) -> list[Any]:
    """Make the call: its node, the buffers it returns, the operands it writes to."""
    from torch._inductor.region_memory import rebuild, translated

    memory = subgraph.region_memory
    for i in memory.mutated:
        # Readers of the old value must come into being before the call does.
        V.graph.mark_buffer_mutated(operands[i].get_name())
    device = next(o.get_device() for o in operands if not isinstance(o, ShapeAsConstantBuffer))
    call = InvokeSubgraph(subgraph=subgraph, operands=operands, layout=MultiOutputLayout(device=device))
    call.outputs = [
        MultiOutput(translated(layout, symbols), call, [(list, i)], skip_size_stride_alignment_checks=True)
        for i, layout in enumerate(memory.buffers)
    ]
    for i in memory.mutated:
        call.mutation_outputs.append(MutationOutput(NoneLayout(device=device), operands[i], call))
    for i in memory.mutated:
        if operands[i].get_name() != given[i].get_name():
            _write_back(given[i], operands[i])
    buffers = [StorageBox(out) for out in call.outputs]
    return [rebuild(output, buffers, operands, symbols) for output in memory.outputs]


def _write_back(original: Any, copied: Any) -> None:
    """The body wrote into a copy made for its strides: the operand itself is to have the new value."""
    from torch._inductor.lowering import lowerings

    def box(x: Any) -> Any:
        return x if isinstance(x, TensorBox) else TensorBox(x)

    lowerings[torch.ops.aten.copy_.default](box(original), box(copied))


@replaces("InvokeSubgraph.create")  # type: ignore[untyped-decorator]
@classmethod  # type: ignore[misc]
def create(cls: Any, subgraph: Any, *operands: Any) -> list[Any]:
    from torch._inductor.region_bodies import prepare
    from torch._inductor.region_memory import substitution

    given = [cls.realize_input(x) for x in operands]
    if subgraph.graph is None:
        prepare(subgraph, _example_operands(subgraph))
    symbols = substitution(subgraph.graph, given)
    return _call(subgraph, given, _constrained(subgraph, given, symbols), symbols)


@replaces("InvokeSubgraph.codegen")  # type: ignore[untyped-decorator]
def codegen(self: Any, wrapper: Any) -> None:
    from torch._inductor.region_donation import give_away

    give_away(self)
    wrapper.codegen_invoke_subgraph(self)


@replaces("MultiOutput.get_read_writes")
def get_read_writes(self: Any) -> ReadWrites:
    find = stock("torch._inductor.ir:MultiOutput.get_read_writes")
    (call, *others) = self.inputs
    if others or not isinstance(call, InvokeSubgraph):
        return find(self)  # type: ignore[no-any-return]
    # Each call writes its results as the others do, under other names.
    known = call.subgraph.__dict__.setdefault("written_by_calls", {})
    layout = self.get_layout()
    key = (layout.device, layout.offset, *layout.size, *layout.stride)
    if key not in known:
        known[key] = call.get_name(), self.get_name(), find(self)
    first_call, first, found = known[key]
    return found.rename({first_call: call.get_name(), first: self.get_name()})  # type: ignore[no-any-return]


def _numbers(values: Sequence[Any]) -> list[int] | None:
    """``values`` as numbers; None if one of them is not known."""
    known = all(type(value) is int or isinstance(value, sympy.Integer) for value in values)
    return [int(value) for value in values] if known else None


@replaces("Layout._stride_expr_ge_or_false")  # type: ignore[untyped-decorator]
@staticmethod  # type: ignore[misc]
def _stride_expr_ge_or_false(left: Any, right: Any) -> bool:
    numbers = _numbers((left, right))
    if numbers is None:
        return stock("torch._inductor.ir:Layout._stride_expr_ge_or_false")(left, right)  # type: ignore[no-any-return]
    one, other = numbers
    # A stride of zero is the least of all; a multiple is no less.
    return other == 0 or (one != 0 and (one >= other or one % other == 0))


@replaces
def try_match_insignificant_strides(tensor: Any, strides: Sequence[Any]) -> Any:
    if is_storage_and_layout(tensor):
        wanted, there = _numbers(strides), _numbers(tensor.get_stride())
        if wanted is not None and wanted == there:
            return tensor
    return stock("torch._inductor.ir:try_match_insignificant_strides")(tensor, strides)


@replaces
def significant_strides_equal(strides1: Sequence[Any], strides2: Sequence[Any], shape: Sequence[Any]) -> bool:
    numbers = _numbers((*strides1, *strides2, *shape))
    if numbers is None or not len(strides1) == len(strides2) == len(shape):
        compare = stock("torch._inductor.ir:significant_strides_equal")
        return compare(strides1, strides2, shape)  # type: ignore[no-any-return]
    n = len(shape)
    return all(numbers[i] == numbers[n + i] or numbers[2 * n + i] <= 1 for i in range(n))
