"""Fake tensors of nothing special, made in one step.

Stock sets some twenty attributes on each fake tensor that it makes, one by one, most of them to None. They are the same
for all fake tensors of one mode and device that are made of a meta tensor alone. So the first is made by stock, and
what it was given is given to the others at once. A call of a region takes well over a hundred of them from end to end.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConfig, FakeTensorMode


# mode -> device -> what stock has set on a fake tensor of them
_given: weakref.WeakKeyDictionary[FakeTensorMode, dict[torch.device, dict[str, Any]]] = weakref.WeakKeyDictionary()


def plain_fake(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> FakeTensor:
    """What ``FakeTensor(mode, meta, device)`` is, for a tensor ``meta`` on the meta device."""
    of_mode = _given.get(mode)
    if of_mode is None:
        of_mode = _given[mode] = {}
    given = of_mode.get(device)
    if given is None or FakeTensorConfig.debug or meta.device.type != "meta":
        made = FakeTensor(mode, meta, device)
        if not FakeTensorConfig.debug:
            # The mode is not kept: it is what the entry lives as long as.
            of_mode[device] = {name: value for name, value in vars(made).items() if value is not mode}
        return made
    fake: Any = torch.Tensor._make_subclass(
        FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=given["_fake_device"]
    )
    if mode._allow_unsafe_data_ptr_access:
        torch._C._set_warn_deprecated_on_mutable_data_ptr(fake)
    else:
        torch._C._set_throw_on_mutable_data_ptr(fake)
    vars(fake).update(given)
    fake.fake_mode = mode
    return fake
