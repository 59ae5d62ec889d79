"""The operands that a body may overwrite.

Note [An operand that dies in every call]
In a flat graph, Inductor gives a buffer's memory to the next buffer that is allocated after its last reader. A call of
a region is one reader. An operand that dies in the call (a value that only this layer's backward reads, a gradient, the
layer's input) would stay until the call returns, and everything that the body makes would need new memory.

So an operand that dies in *every* call of a body becomes, inside the body, a donated buffer (Inductor's term for an
input that may be overwritten). The graph around the calls does not use its memory again, because a result of the body
may live there. Whether the operand dies in a call is known exactly when code is generated. The order of all readers is
fixed then, and the test is Inductor's own: is this the last reader of a buffer that it may reuse? Buffers that alias
others, inputs that were not donated, results and constants fail it. Operands that hold a result of the body, or that
the body is known to write to, are reported to the caller in other ways (Note [The memory of a region's outputs] in
regions/memory.py) and are not donated.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch._inductor import config, ir
from torch._inductor.regions.memory import buffer_of
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet


def give_away(call: Any) -> None:
    """Before the code of ``call`` is generated, decides which operands its body may overwrite, and donates them."""
    from torch._inductor.graph import GraphLowering  # which imports the wrapper, which asks for this

    around, subgraph = V.graph, call.subgraph
    if getattr(subgraph, "donated", None) is None:
        subgraph.donated = _dying_in_every_call(subgraph, around)
        if isinstance(subgraph.graph, GraphLowering):
            donate(subgraph.graph, subgraph.donated)
    given = given_away_by(around)
    given.update(buffer_of(call.inputs[i]).get_name() for i in subgraph.donated)


def given_away_by(graph: Any) -> OrderedSet[str]:
    """The buffers of a graph that one of its calls has given to a body."""
    if not hasattr(graph, "given_away"):
        graph.given_away = OrderedSet()
    return graph.given_away  # type: ignore[no-any-return]


def donate(body: Any, indices: list[int]) -> None:
    """Donates the operands at ``indices`` to a lowered body, before its code is generated."""
    for index in indices:
        name = body.graph_input_names[index]
        operand = body.graph_inputs_original[name]
        donated = ir.DonatedBuffer(name=name, layout=operand.get_layout())
        body.graph_inputs_original[name] = body.graph_inputs[name].data.data = donated
        if operand.get_device_or_error().type == "cpu":
            # CPU code does not depend on alignment, so every input is marked as unaligned. With that mark, a buffer
            # that the body makes could not reuse the memory.
            body.unaligned_buffers.discard(name)


def _dying_in_every_call(subgraph: Any, around: Any) -> list[int]:
    if around.cpp_wrapper or around.fx_wrapper or around.aot_mode or config.memory_planning:
        # Other wrappers call a body differently, and memory planning places buffers itself.
        return []
    memory = subgraph.region_memory
    kept = {output.operand for output in memory.outputs} | set(memory.mutated)
    calls = [op for op in around.operations if isinstance(op, ir.InvokeSubgraph) and op.subgraph is subgraph]
    scheduled = {node.get_name(): node for node in around.scheduler.nodes}
    if any(call.get_operation_name() not in scheduled for call in calls):
        return []
    indices = set(range(len(calls[0].inputs))) - kept
    own_inputs = _own_inputs(around)
    for call in calls:
        indices &= _dying(call, scheduled[call.get_operation_name()], around, own_inputs)
    return sorted(indices)


def _own_inputs(around: Any) -> set[str]:
    """The inputs of a graph that are not known to share memory with another input, as two saved views do."""
    storages = {
        name: value.untyped_storage()._cdata
        for name, value in zip(around.graph_input_names, around.example_inputs)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
    }
    times = Counter(storages.values())
    return {name for name, storage in storages.items() if times[storage] == 1}


def _dying(call: Any, node: Any, around: Any, own_inputs: set[str]) -> set[int]:
    """Indices of the operands whose memory is not needed after ``call`` and belongs to no other operand."""
    buffers = [buffer_of(operand) for operand in call.inputs]
    names = ["" if buffer is None else buffer.get_name() for buffer in buffers]
    # If one buffer aliases another, count both as operands, so that neither is donated.
    times = Counter(owner for name in names for owner in _owners(name, around))
    return {
        index
        for index, (name, buffer) in enumerate(zip(names, buffers))
        if name in node.last_usage and times[name] == 1 and (name in own_inputs or name not in around.graph_inputs)
        if _may_reuse(buffer, around) and _is_whole(call.inputs[index], buffer)
    }


def _owners(name: str, around: Any) -> set[str]:
    """The buffers whose memory the buffer ``name`` may be in: itself, and all that it is a part or a view of."""
    owners: set[str] = set()
    left = [name]
    while left:
        owner = left.pop()
        if owner in owners:
            continue
        owners.add(owner)
        buffer = around.name_to_buffer.get(owner)
        if buffer is not None:
            left += [*buffer.get_inputs_that_alias_output(), *buffer.get_mutation_names()]
    return owners


def _may_reuse(buffer: Any, around: Any) -> bool:
    """Whether Inductor may give the memory of ``buffer`` to others after its last reader."""
    name = buffer.get_name()
    if not around.wrapper_code.can_reuse(buffer) or name in given_away_by(around):
        return False
    if name in around.graph_inputs:
        return True
    scheduled = around.scheduler.name_to_buf.get(name)
    owning = isinstance(buffer.layout, ir.FixedLayout) and not isinstance(buffer.layout, ir.CommBufferLayout)
    aliasing = buffer.get_inputs_that_alias_output() or buffer.get_mutation_names()
    return owning and not aliasing and scheduled is not None and scheduled.can_free()


def _is_whole(operand: Any, buffer: Any) -> bool:
    """Whether an operand covers all memory of its buffer, so that the size that the body assumes is correct."""
    while isinstance(operand, ir.MutableBox):
        operand = operand.data
    if operand is buffer:
        return True
    layout = operand.get_layout()
    numbers = (*layout.size, *layout.stride, layout.offset, *buffer.get_size())
    if any(not getattr(number, "is_number", isinstance(number, int)) for number in numbers):
        return False
    bytes_seen, bytes_there = (int(of.get_numel()) * of.get_dtype().itemsize for of in (operand, buffer))
    return _is_dense(layout) and layout.offset == 0 and bytes_seen == bytes_there


def _is_dense(layout: ir.Layout) -> bool:
    """Whether the elements neither overlap nor leave gaps between them."""
    elements = 1
    for stride, size in sorted((int(n), int(m)) for n, m in zip(layout.stride, layout.size)):
        if size != 1 and stride != elements:
            return False
        elements *= size
    return True
