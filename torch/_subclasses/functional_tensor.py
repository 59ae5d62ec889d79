"""Overlay of torch._subclasses.functional_tensor: a fake tensor is made functional in fewer steps.

A functional tensor asks the tensor that it wraps for its device. Stock answers as it would compute an operator: may it
decompose, has it an effect, what of its arguments is to be unwrapped, and so on. AOTAutograd makes some fifty of them
for a call of a region, three for each parameter and one for each gradient.
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
