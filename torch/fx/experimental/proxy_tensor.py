"""Overlay of torch.fx.experimental.proxy_tensor: fake tensors are noted without being watched while it is done.

A mode for torch functions stands above a tracer, to note which one an operator came of. It also sees each attribute of
a tensor that the tracer itself asks for, some twenty of each parameter. None of these is the program's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import _ProxyTensor, set_proxy_slot
from torch.fx.proxy import Proxy

from torch_regions.overlay import replaces, stock


@replaces
def set_meta(proxy: Proxy, val: Any) -> Proxy:
    note = stock("torch.fx.experimental.proxy_tensor:set_meta")
    if type(val) is not FakeTensor:
        return note(proxy, val)  # type: ignore[no-any-return]
    with torch._C.DisableTorchFunction():
        return note(proxy, val)  # type: ignore[no-any-return]


def _is_numbered(tensor: torch.Tensor) -> bool:
    """Whether it is dense and none of its sizes, strides and its offset is a symbol, to be tracked by itself."""
    with torch._C.DisableTorchFunction():
        return tensor.layout is torch.strided and not tensor._has_symbolic_sizes_strides


@replaces
def track_tensor(tensor: torch.Tensor, proxy: Proxy, *, constant: torch.Tensor | None, tracer: Any) -> None:
    if type(tensor) is FakeTensor and _is_numbered(tensor):
        set_proxy_slot(tensor, tracer, _ProxyTensor(proxy, constant))
        return
    stock("torch.fx.experimental.proxy_tensor:track_tensor")(tensor, proxy, constant=constant, tracer=tracer)
