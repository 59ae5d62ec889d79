"""Overlay of torch._inductor.fx_passes.reinplace: copies what a call of a region wrote, where it is read at the end.

Note [What a call wrote is read before the epilogue]
AOTAutograd makes a call that writes to its operand a functional one, which returns the operand's new value. At the end
of the graph ``copy_`` writes the last value to an input. This pass makes the calls write again. It lets the first of
several calls write to the input itself: all that is looked at is who reads the input later. But a result of the graph,
or a ``copy_`` to another input, may be the value that this call returned: the program's ``cache.clone()``, a copy that
an earlier pass has removed. It would read what a later call wrote, or be the input. So such a value is copied first.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.regions.switch import has_regions
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch._inductor.fx_utils import get_node_storage
from torch.fx import Graph, Node

from torch_regions.overlay import replaces, stock


_COPY = torch.ops.aten.copy_.default


def _inputs_written(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Each input of the graph that calls of regions and the epilogue write to, with a value that a call made of it."""
    of_input: dict[Node, Node] = {}  # a call's value of an input -> the input
    copied_to = {node.args[0] for node in graph.find_nodes(op="call_function", target=_COPY)}
    for call in graph.find_nodes(op="call_function", target=auto_functionalized_v2):
        if call.args[0] is not torch.ops.higher_order.invoke_subgraph:
            continue
        bases: list[Node] = call.kwargs["_all_bases"]
        first = len(call.meta["val"]) - len(bases)
        for item in call.users:
            if item.target is not operator.getitem or item.args[1] < first:
                continue
            base = bases[item.args[1] - first]
            of_input[item] = of_input.get(base, base)
            if of_input[item] in copied_to:
                yield of_input[item], item


def _copy_of(value: Node) -> Node:
    with value.graph.inserting_after(value):
        copy = value.graph.call_function(torch.ops.aten.clone.default, (value,))
    val: Any = value.meta["val"]
    with val.fake_mode:
        copy.meta["val"] = val.clone()
    return copy


def _copy_what_calls_wrote(graph: Graph) -> None:
    written = {get_node_storage(value): input_ for input_, value in _inputs_written(graph)}
    written.pop(None, None)  # of what has no storage, nothing is reinplaced
    if not written:
        return
    copies: dict[Node, Node] = {}

    def copied(value: Node, to: Any = None) -> Node:
        input_ = written.get(get_node_storage(value))
        if input_ is None or input_ is to:
            return value
        if value not in copies:
            copies[value] = _copy_of(value)
        return copies[value]

    for node in graph.find_nodes(op="call_function", target=_COPY):
        to, value = node.args[:2]
        if isinstance(value, Node):
            node.update_arg(1, copied(value, to))
    output = graph.output_node()
    output.args = torch.fx.map_arg(output.args, copied)


@replaces
def reinplace_inplaceable_ops(fake_tensor_updater: Any, graph: Graph) -> None:
    if has_regions():
        # See Note [What a call wrote is read before the epilogue]
        _copy_what_calls_wrote(graph)
    stock("torch._inductor.fx_passes.reinplace:reinplace_inplaceable_ops")(fake_tensor_updater, graph)
