"""Overlay of torch._subclasses.functional_tensor: makes a fake tensor functional in fewer steps.

A functional tensor reads the device of the tensor that it wraps. Stock handles this like any operator: whether it may
decompose, whether it has an effect, which arguments must be unwrapped, and so on. AOTAutograd makes some fifty
functional tensors for a call of a region, three for each parameter and one for each gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torch_regions.overlay import replaces, stock


@replaces("FunctionalTensorMode.__torch_dispatch__")
def __torch_dispatch__(
    self: Any, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    if func is torch.ops.prim.device.default and type(args[0]) is FakeTensor:
        return args[0].device
    dispatch = stock("torch._subclasses.functional_tensor:FunctionalTensorMode.__torch_dispatch__")
    return dispatch(self, func, types, args, kwargs)
