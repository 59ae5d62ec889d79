"""Overlay of torch._inductor.ir: calls of a body share what is known of how their results are written."""

from __future__ import annotations

from typing import Any

from torch._inductor.dependencies import ReadWrites
from torch._inductor.ir import InvokeSubgraph

from torch_regions.overlay import replaces, stock


@replaces("MultiOutput.get_read_writes")
def get_read_writes(self: Any) -> ReadWrites:
    find = stock("torch._inductor.ir:MultiOutput.get_read_writes")
    (call, *others) = self.inputs
    if others or not isinstance(call, InvokeSubgraph):
        return find(self)  # type: ignore[no-any-return]
    # All calls of a body write their results in the same way, under different names.
    known = call.subgraph.__dict__.setdefault("written_by_calls", {})
    layout = self.get_layout()
    key = (layout.device, layout.offset, *layout.size, *layout.stride)
    if key not in known:
        known[key] = call.get_name(), self.get_name(), find(self)
    first_call, first, found = known[key]
    return found.rename({first_call: call.get_name(), first: self.get_name()})  # type: ignore[no-any-return]
