"""Overlay of torch._dynamo.pgo: the history of numbers and sizes is kept at the frame that flat tracing would use."""

from __future__ import annotations

import types
from typing import Any

from torch._dynamo.regions.size_history import SIZE_HISTORY

from torch_regions.overlay import replaces, stock


@replaces
def process_automatic_dynamic(tx: Any, name: str, entry: Any, *, is_unspecialized_nn_module: bool = False) -> Any:
    owner = SIZE_HISTORY.of(tx.output).owner(tx, name)
    if owner is not None:
        tx = types.SimpleNamespace(f_code=owner[0], closure=owner[1], distributed_state=tx.distributed_state)
    process = stock("torch._dynamo.pgo:process_automatic_dynamic")
    return process(tx, name, entry, is_unspecialized_nn_module=is_unspecialized_nn_module)
