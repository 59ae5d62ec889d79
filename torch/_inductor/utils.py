"""Overlay of torch._inductor.utils: finds the origins of one result of a call without searching all results."""

from __future__ import annotations

from typing import Any

from torch.fx import Node
from torch.utils._ordered_set import OrderedSet

from torch_regions.overlay import replaces, stock


@replaces
def gather_origins(args: Any, kwargs: Any) -> OrderedSet[Node]:
    gather = stock("torch._inductor.utils:gather_origins")
    if len(args) == 2 and type(args[0]) is list and type(args[1]) is int and _is_result(args[0][args[1]]):
        # A call has many results and a getitem for each, which reads that result only.
        return gather((args[0][args[1]],), kwargs)  # type: ignore[no-any-return]
    return gather(args, kwargs)  # type: ignore[no-any-return]


def _is_result(value: Any) -> bool:
    from torch._inductor import ir

    while isinstance(value, (ir.MutableBox, ir.BaseView)):
        value = value.data
    return isinstance(value, ir.MultiOutput) and isinstance(value.inputs[0], ir.InvokeSubgraph)
