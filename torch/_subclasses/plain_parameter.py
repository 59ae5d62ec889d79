"""Recognizes ordinary parameters: dense, with a storage of their own, of no subclass."""

from __future__ import annotations

import torch
import torch.nn


# Devices whose tensors have storages of their own and no further state.
_DEVICES = frozenset({"cpu", "cuda", "xpu", "mps"})
# dispatch keys of a tensor, as a number -> whether they are those of an ordinary dense tensor
_dense: dict[int, bool] = {}


def _is_dense(t: torch.Tensor) -> bool:
    # The dispatch keys determine all of these, so the result is cached by them.
    return (
        t.layout is torch.strided
        and t.device.type in _DEVICES
        and not (t.is_quantized or t.is_nested or t.is_inference() or t.is_conj() or t.is_neg())
        and not torch._C._functorch.is_functorch_wrapped_tensor(t)
        and not torch._C._dispatch_keys(t).has(torch._C.DispatchKey.Functionalize)
    )


def is_plain_parameter(t: torch.Tensor) -> bool:
    """Whether ``t`` is an ordinary dense parameter that covers its whole storage and has no gradient."""
    if type(t) is not torch.nn.Parameter:
        return False
    keys = torch._C._dispatch_keys(t).raw_repr()
    dense = _dense.get(keys)
    if dense is None:
        dense = _dense[keys] = _is_dense(t)
    return (
        dense
        and t.is_leaf
        and t.grad is None
        and t.storage_offset() == 0
        and t.untyped_storage().nbytes() > 0
        and not t._is_view()
        and not getattr(t, "_is_buffer", False)
    )
