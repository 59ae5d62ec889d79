"""Overlay of torch._ops: the arguments of a higher order operator that are flat are not flattened.

A call of a region has all that its body takes as arguments, and each of the modes it goes through looks at them twice.
"""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import SUPPORTED_NODES

from torch_regions.overlay import replaces, stock


@replaces
def _to_flat_tuple(args: Any, kwargs: Any) -> list[Any]:
    if kwargs or any(type(value) in SUPPORTED_NODES or isinstance(value, tuple) for value in args):
        return stock("torch._ops:_to_flat_tuple")(args, kwargs)  # type: ignore[no-any-return]
    return list(args)
