"""Makes a fake tensor with the attributes of an earlier one.

Stock sets some twenty attributes on each fake tensor that it makes, one by one, most of them to None. They are the same
for all fake tensors of one mode and device that are made from a meta tensor alone. So stock makes the first one, and
the others get its attributes at once. A call of a region makes well over a hundred of them from end to end.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode


# mode -> device -> the attributes that stock sets on a fake tensor of these
_given: weakref.WeakKeyDictionary[FakeTensorMode, dict[torch.device, dict[str, Any]]] = weakref.WeakKeyDictionary()


def plain_fake(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> FakeTensor:
    """The same as ``FakeTensor(mode, meta, device)``, for a tensor ``meta`` on the meta device."""
    of_mode = _given.get(mode)
    if of_mode is None:
        of_mode = _given[mode] = {}
    given = of_mode.get(device)
    debug = torch._subclasses.fake_tensor.FakeTensorConfig.debug
    if given is None or debug or meta.device.type != "meta":
        made = FakeTensor(mode, meta, device)
        if not debug:
            # The mode is left out: the entry must not keep its own key alive.
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
