"""Overlay of torch._dynamo.variables.functions: reports what runs under assume_constant_result to region calls."""

from __future__ import annotations

import types
from typing import Any

from torch._dynamo.regions.trace.events import note_run

from torch_regions.overlay import replaces, stock


@replaces
def invoke_and_store_as_constant(tx: Any, fn: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """As stock: the result of a function under assume_constant_result, which Dynamo runs while it traces."""
    if type(fn) is types.MethodType or any(arg.is_tensor() for arg in (*args, *kwargs.values())):
        # No guard shows what a method reads of its object, or which numbers a tensor holds.
        note_run(name)
    made = stock("torch._dynamo.variables.functions:invoke_and_store_as_constant")
    return made(tx, fn, name, args, kwargs)
