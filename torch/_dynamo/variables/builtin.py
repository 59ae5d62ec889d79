"""Overlay of torch._dynamo.variables.builtin: functions of constants that a region's call holds back."""

from __future__ import annotations

from typing import Any

from torch_regions.overlay import replaces, stock


@replaces("BuiltinVariable.call_function")
def call_function(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not kwargs and (observers := tx.output.region_tracker.calls.observers):
        held = observers[-1].holding.apply(tx, self.fn, args)
        if held is not None:
            return held
    return stock("torch._dynamo.variables.builtin:BuiltinVariable.call_function")(self, tx, args, kwargs)


@replaces("GetAttrBuiltinVariable.call_function")
def call_getattr(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not kwargs and (observers := tx.output.region_tracker.calls.observers):
        held = observers[-1].holding.apply(tx, getattr, args)
        if held is not None:
            return held
    return stock("torch._dynamo.variables.builtin:GetAttrBuiltinVariable.call_function")(self, tx, args, kwargs)
