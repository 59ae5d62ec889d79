"""Overlay of torch._inductor.ir: compares constant layouts as numbers, and shares dependencies between calls of a body.

A call has many operands and results, and each must have the strides that the body was compiled for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from torch._inductor.dependencies import ReadWrites
from torch._inductor.ir import InvokeSubgraph

from torch_regions.overlay import replaces, stock


@replaces("MultiOutput.get_read_writes")
def get_read_writes(self: Any) -> ReadWrites:
    find = stock("torch._inductor.ir:MultiOutput.get_read_writes")
    (call, *others) = self.inputs
    if others or not isinstance(call, InvokeSubgraph):
        return find(self)  # type: ignore[no-any-return]
    # All calls of a body write their results in the same way, under different names.
    known = call.subgraph.__dict__.setdefault("written_by_calls", {})
    layout = self.get_layout()
    key = (layout.device, layout.offset, *layout.size, *layout.stride)
    if key not in known:
        known[key] = call.get_name(), self.get_name(), find(self)
    first_call, first, found = known[key]
    return found.rename({first_call: call.get_name(), first: self.get_name()})  # type: ignore[no-any-return]


def _numbers(values: Sequence[Any]) -> list[int] | None:
    """``values`` as numbers; None if one of them is symbolic."""
    known = all(type(value) is int or isinstance(value, sympy.Integer) for value in values)
    return [int(value) for value in values] if known else None


@replaces("Layout._stride_expr_ge_or_false")  # type: ignore[untyped-decorator]
@staticmethod  # type: ignore[misc]
def _stride_expr_ge_or_false(left: Any, right: Any) -> bool:
    numbers = _numbers((left, right))
    if numbers is None:
        return stock("torch._inductor.ir:Layout._stride_expr_ge_or_false")(left, right)  # type: ignore[no-any-return]
    one, other = numbers
    # A stride of zero is the least; a multiple of a stride is not less than the stride.
    return other == 0 or (one != 0 and (one >= other or one % other == 0))


@replaces
def significant_strides_equal(strides1: Sequence[Any], strides2: Sequence[Any], shape: Sequence[Any]) -> bool:
    numbers = _numbers((*strides1, *strides2, *shape))
    if numbers is None or not len(strides1) == len(strides2) == len(shape):
        compare = stock("torch._inductor.ir:significant_strides_equal")
        return compare(strides1, strides2, shape)  # type: ignore[no-any-return]
    n = len(shape)
    return all(numbers[i] == numbers[n + i] or numbers[2 * n + i] <= 1 for i in range(n))
