"""Overlay of torch._functorch._aot_autograd.graph_capture: a fake input is detached without a dispatch."""

from __future__ import annotations

import torch
from torch._subclasses.fake_impls import fast_detach
from torch._subclasses.fake_tensor import FakeTensor

from torch_regions.overlay import replaces, stock


@replaces
def _detach_and_copy_item_memo(t: torch.Tensor) -> torch.Tensor:
    if type(t) is not FakeTensor:
        # Another type may define its own detach.
        return stock("torch._functorch._aot_autograd.graph_capture:_detach_and_copy_item_memo")(t)  # type: ignore[no-any-return]
    # This runs for each parameter of the model, and dispatching its detach() would end in ``fast_detach`` anyway.
    detached = fast_detach(t.fake_mode, t)
    if t.item_memo is not None:
        detached.item_memo = t.item_memo
    return detached
