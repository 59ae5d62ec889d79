"""The memory of a region's results: in which buffer each output of a lowered body lives.

Note [The memory of a region's outputs]
A lowered body returns IR nodes. Several may live in one buffer of the body (a result and a value saved for the
backward; two views), some in an argument (a saved weight, a view of it) or in a constant. The caller receives only
tensors. If each of them were a separate buffer to the caller, the caller would treat all of them as fresh memory with
one owner: it would reuse one in place while another is still to be read, or give an argument's memory to the next
kernel.

So the body returns each *buffer of its own* once, and each output is described to the caller as a view of one of those
buffers or of one of the call's operands. Inductor knows the lifetimes of views exactly, so it still reuses memory
wherever that is safe. An output that cannot be described like this (a constant, memory that an opaque kernel aliases)
is copied inside the body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.utils import ALIGNMENT, sympy_subs
from torch._inductor.virtualized import V


@dataclass
class RegionOutput:
    """One output: a view with `layout` of a returned buffer or of an operand, or not a tensor."""

    value: Any = None  # if not a tensor: what the body returns, in the body's symbols
    buffer: int | None = None
    operand: int | None = None
    layout: ir.Layout | None = None


@dataclass
class RegionMemory:
    """What the callers of a body need to know about its memory."""

    outputs: list[RegionOutput]
    buffers: list[ir.Layout]  # layouts of the buffers that the body returns
    mutated: list[int]  # indices of the operands that the body writes to
    aligned: list[int]  # indices of those whose kernels may use vector loads on them, which asks for aligned addresses


def _leaf(node: Any) -> Any:
    while not isinstance(node, ir.Buffer):
        node = node.data
    return node


def _resolve(node: Any) -> tuple[Any, ir.FixedLayout]:
    """The buffer that `node` lives in, and the layout of `node` within that buffer."""
    _, layout = ir.as_storage_and_layout(node, freeze=True)
    buffer = _leaf(node)
    offset = sympy.Integer(0)
    if isinstance(buffer.layout, ir.MutationLayoutSHOULDREMOVE):
        buffer, under = _resolve(buffer.layout.target)
        if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            return buffer, under
        offset = under.offset
    elif isinstance(buffer.layout, ir.NonOwningLayout):
        buffer, under = _resolve(buffer.layout.view)
        offset = under.offset
    return buffer, _fixed(layout, layout.size, layout.stride, layout.offset + offset)


def _fixed(like: ir.Layout, size: Any, stride: Any, offset: Any) -> ir.FixedLayout:
    return ir.FixedLayout(
        device=like.device,
        dtype=like.dtype,
        size=list(size),
        stride=list(stride),
        offset=offset,
        is_pinned=like.is_pinned,
    )


def _same_itemsize(buffer: Any, layout: ir.Layout) -> bool:
    return bool(buffer.get_dtype().itemsize == layout.dtype.itemsize)


def buffer_of(node: Any) -> Any:
    """The buffer of a result or an operand; None if it is not a tensor."""
    while isinstance(node, (ir.MutableBox, ir.BaseView)):
        node = node.data
    return node if isinstance(node, ir.Buffer) and isinstance(node.layout, ir.Layout) else None


def is_aligned(node: Any) -> bool:
    """Whether Inductor knows that a tensor begins at an aligned address, where a kernel may use vector loads.

    An operand has its eager strides, but not necessarily its eager address: Inductor removes a copy whose result equals
    its input, and a tensor that had memory of its own in eager is then the middle of a buffer.
    """
    buffer = buffer_of(node)
    if buffer is None:
        return True
    layout = buffer.get_layout()
    if isinstance(layout, ir.NonOwningLayout) and not layout.maybe_guard_aligned():
        return False
    offset = node.get_layout().offset * node.get_dtype().itemsize
    known = V.graph.sizevars.statically_known_multiple_of(offset, ALIGNMENT)
    return bool(known) and buffer.get_name() not in V.graph.unaligned_buffers


def _is_unaligned(buffer: Any, graph: Any) -> bool:
    return buffer.get_device_or_error().type != "cpu" and buffer.get_name() in graph.unaligned_buffers


def analyse(graph: Any) -> RegionMemory:
    """Describes the outputs of the lowered body `graph`, and makes it return each buffer of its own once."""
    positions = {name: i for i, name in enumerate(graph.graph_input_names)}
    names: dict[str, int] = {}
    returned: list[Any] = []
    memory = RegionMemory([], [], _mutated(graph, positions), _aligned(graph))
    with V.set_graph_handler(graph):
        for output in graph.graph_outputs:
            if buffer_of(output) is None:
                memory.outputs.append(RegionOutput(value=output))
                continue
            buffer, layout = _resolve(output)
            name = buffer.get_name()
            if name in positions and _same_itemsize(buffer, layout):
                memory.outputs.append(RegionOutput(operand=positions[name], layout=layout))
                continue
            owned = not isinstance(buffer, ir.InputBuffer)  # a constant is an input buffer as well
            # The caller assumes that each buffer begins at an aligned address, as if it had allocated the buffer.
            elsewhere = buffer.get_inputs_that_alias_output() or _is_unaligned(buffer, graph)
            if not owned or elsewhere or not _same_itemsize(buffer, layout):
                buffer, layout = _resolve(_copy(output))
                name = buffer.get_name()
            if name not in names:
                names[name] = len(returned)
                returned.append(ir.StorageBox(buffer))
                memory.buffers.append(buffer.get_layout())
            memory.outputs.append(RegionOutput(buffer=names[name], layout=layout))
        graph.graph_outputs = returned
    return memory


def _copy(output: Any) -> Any:
    copied = ir.ExternKernel.copy_input(output)
    copied.realize()
    copied.freeze_layout()
    return copied


def _mutated(graph: Any, positions: dict[str, int]) -> list[int]:
    names = {name for op in graph.operations for out in op.get_outputs() for name in out.get_mutation_names()}
    return sorted(positions[name] for name in names if name in positions)


def _aligned(graph: Any) -> list[int]:
    """On the CPU no kernel depends on alignment."""
    return [
        index
        for index, (name, example) in enumerate(zip(graph.graph_input_names, graph.example_inputs))
        if isinstance(example, torch.Tensor) and example.device.type != "cpu" and name not in graph.unaligned_buffers
    ]


def substitution(graph: Any, operands: list[Any]) -> dict[sympy.Symbol, Any]:
    """The body's own symbols -> their expressions in a call, from the symbols among its operands and their sizes."""
    found = {}
    for taken, operand in zip(graph.example_inputs, operands):
        if isinstance(taken, torch.Tensor):
            pairs = zip(taken.shape, operand.get_size())
        else:
            pairs = zip([taken], [operand.expr if isinstance(operand, ir.ShapeAsConstantBuffer) else operand])
        for size, expr in pairs:
            symbol = size.node.expr if isinstance(size, torch.SymInt) else None
            if isinstance(symbol, sympy.Symbol) and isinstance(expr, sympy.Expr) and symbol != expr:
                found[symbol] = expr
    return found


def _translate(exprs: Any, symbols: dict[sympy.Symbol, Any]) -> list[Any]:
    return [sympy_subs(e, symbols) if symbols and isinstance(e, sympy.Expr) else e for e in exprs]


def translated(layout: ir.Layout, symbols: dict[sympy.Symbol, Any]) -> ir.FixedLayout:
    """`layout` of the body, in the symbols of a call."""
    (offset,) = _translate([sympy.sympify(layout.offset)], symbols)
    return _fixed(layout, _translate(layout.size, symbols), _translate(layout.stride, symbols), offset)


def strides_of_body(fake: Any, symbols: dict[sympy.Symbol, Any]) -> list[Any]:
    """The strides that a body was compiled for, in the symbols of a call."""
    strides = [s.node.expr if hasattr(s, "node") else sympy.Integer(s) for s in fake.stride()]
    return _translate(strides, symbols)


def rebuild(output: RegionOutput, buffers: list[Any], operands: list[Any], symbols: dict[sympy.Symbol, Any]) -> Any:
    """One output of a call, as IR that the caller may use."""
    if output.layout is None:
        value = output.value
        if isinstance(value, ir.ShapeAsConstantBuffer):
            return ir.ShapeAsConstantBuffer(expr=_translate([value.expr], symbols)[0])
        return ir.TensorBox.create(value)
    whole = buffers[output.buffer] if output.buffer is not None else operands[output.operand or 0]
    layout = translated(output.layout, symbols)
    storage, seen = ir.as_storage_and_layout(whole, freeze=True)
    layout = _fixed(layout, layout.size, layout.stride, seen.offset + layout.offset)
    own = storage.data.get_layout()
    if (own.dtype, own.offset, list(own.size), list(own.stride)) == (
        layout.dtype,
        layout.offset,
        layout.size,
        layout.stride,
    ):
        return ir.TensorBox(storage)
    return ir.TensorBox(ir.ReinterpretView(data=storage, layout=layout))
