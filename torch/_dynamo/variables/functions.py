"""Overlay of torch._dynamo.variables.functions: the calls of regions hear of constants that objects are asked for."""

from __future__ import annotations

import types
from typing import Any

from torch._dynamo.regions.trace.events import note_run

from torch_regions.overlay import replaces, stock


@replaces
def invoke_and_store_as_constant(tx: Any, fn: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """As stock: the result of a function under assume_constant_result, which is run while the program is traced."""
    if type(fn) is types.MethodType:  # what it reads of its object is neither an argument nor guarded
        note_run(name)
    made = stock("torch._dynamo.variables.functions:invoke_and_store_as_constant")
    return made(tx, fn, name, args, kwargs)
