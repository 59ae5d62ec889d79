"""Overlay of torch._functorch._aot_autograd.runtime_wrappers: the first run of a graph costs less for each operator.

In its first run every operator is looked at, bodies of regions included, for custom operators whose results alias their
arguments. The look at the arguments is most of what the first run of a small model costs, and it is for nothing where
the operator is torch's own.
"""

from __future__ import annotations

from typing import Any

from torch._library.utils import is_builtin
from torch._ops import OpOverload

from torch_regions.overlay import replaces, stock


@replaces("_AnalyzeCustomOpInputOutputMode.__torch_dispatch__")
def __torch_dispatch__(
    self: Any, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    # Without `types` there is no tensor among the arguments that would take the operator for itself.
    if not types and isinstance(func, OpOverload) and is_builtin(func):
        return func(*args, **(kwargs or {}))
    check = stock("torch._functorch._aot_autograd.runtime_wrappers:_AnalyzeCustomOpInputOutputMode.__torch_dispatch__")
    return check(self, func, types, args, kwargs)
