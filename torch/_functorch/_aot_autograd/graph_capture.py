"""Overlay of torch._functorch._aot_autograd.graph_capture: a fake input is detached without a dispatch."""

from __future__ import annotations

import torch
from torch._subclasses.fake_impls import fast_detach
from torch._subclasses.fake_tensor import FakeTensor

from torch_regions.overlay import replaces, stock


@replaces
def _detach_and_copy_item_memo(t: torch.Tensor) -> torch.Tensor:
    if type(t) is not FakeTensor:
        # Another tensor's detach may be its own.
        return stock("torch._functorch._aot_autograd.graph_capture:_detach_and_copy_item_memo")(t)  # type: ignore[no-any-return]
    # Each parameter of the model comes here; this is where the dispatch of its detach() ends.
    detached = fast_detach(t.fake_mode, t)
    if t.item_memo is not None:
        detached.item_memo = t.item_memo
    return detached
