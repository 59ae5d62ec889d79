"""Overlay of torch._inductor.scheduler: skips the search for symbols in a constant layout."""

from __future__ import annotations

from typing import Any

import sympy
from torch._inductor.ir import FixedLayout
from torch.utils._ordered_set import OrderedSet

from torch_regions.overlay import replaces, stock


@replaces
def get_layout_symints(node: Any) -> OrderedSet[sympy.Symbol]:
    layout = node.maybe_get_layout()
    if type(layout) is FixedLayout and all(map(_is_number, (*layout.size, *layout.stride, layout.offset))):
        return OrderedSet()
    return stock("torch._inductor.scheduler:get_layout_symints")(node)  # type: ignore[no-any-return]


def _is_number(value: Any) -> bool:
    return type(value) is int or isinstance(value, sympy.Integer)
