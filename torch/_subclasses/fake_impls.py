"""Overlay of torch._subclasses.fake_impls: detaches a fake tensor in fewer steps.

AOTAutograd notes the metadata of each value where it is made and, for a call of a region, that of each operand.
"""

from __future__ import annotations

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from torch_regions.overlay import replaces, stock


@replaces
def fast_detach(fake_mode: FakeTensorMode, x: FakeTensor, include_real: bool = False) -> FakeTensor:
    from torch._subclasses.plain_fake import plain_fake  # not there yet when this module is loaded

    # The tracer's torch-function mode would note each attribute that is read.
    with torch._C.DisableTorchFunction():
        if include_real and x.real_tensor is not None:
            return stock("torch._subclasses.fake_impls:fast_detach")(fake_mode, x, include_real)  # type: ignore[no-any-return]
        device = x.fake_device
        with no_python_dispatcher(), in_kernel_invocation_manager(fake_mode):
            detached = torch.ops.aten.detach.default(x)
        return plain_fake(fake_mode, detached, device)
