"""Overlay of torch._dynamo.pgo: the history of numbers and sizes is that of the frame which would ask for them."""

from __future__ import annotations

import types
from typing import Any

from torch_regions.overlay import replaces, stock


@replaces
def process_automatic_dynamic(tx: Any, name: str, entry: Any, *, is_unspecialized_nn_module: bool = False) -> Any:
    calls = tx.output.region_tracker.calls
    asker = calls.asker or (tx.f_code, tx.closure)
    calls.askers.setdefault(name, asker)
    if calls.asker is not None:
        # A call that is stamped out: the frame that traced it is gone.
        tx = types.SimpleNamespace(f_code=asker[0], closure=asker[1], distributed_state=tx.distributed_state)
    process = stock("torch._dynamo.pgo:process_automatic_dynamic")
    return process(tx, name, entry, is_unspecialized_nn_module=is_unspecialized_nn_module)
