"""Overlay of torch._subclasses.fake_impls: the copy of a fake tensor that tracing keeps, made in fewer steps.

AOTAutograd notes what each value looks like where it is made and, of a call of a region, what each operand looks like.
"""

from __future__ import annotations

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from torch_regions.overlay import replaces, stock


@replaces
def fast_detach(fake_mode: FakeTensorMode, x: FakeTensor, include_real: bool = False) -> FakeTensor:
    from torch._subclasses.fake_tensor import plain_fake  # not there yet when this module is loaded

    # The tracer's mode for torch functions notes each attribute that is asked for.
    with torch._C.DisableTorchFunction():
        if include_real and x.real_tensor is not None:
            return stock("torch._subclasses.fake_impls:fast_detach")(fake_mode, x, include_real)  # type: ignore[no-any-return]
        device = x.fake_device
        with no_python_dispatcher(), in_kernel_invocation_manager(fake_mode):
            detached = torch.ops.aten.detach.default(x)
        return plain_fake(fake_mode, detached, device)
