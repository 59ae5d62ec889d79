"""Overlay of torch._dynamo.variables.builtin: builtin functions of deferred constants, and reports of isinstance."""

from __future__ import annotations

from typing import Any

from torch._dynamo.regions.trace.events import RECORDERS, TRACE_EVENTS, note_check

from torch_regions.overlay import replaces, stock


def _held(tx: Any, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    recorders = RECORDERS.of(tx.output)
    return recorders[-1].deferred.apply(tx, fn, args) if recorders and not kwargs else None


@replaces("BuiltinVariable.call_function")
def call_function(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if self.fn is isinstance and TRACE_EVENTS and len(args) == 2:
        note_check(args[1].unwrap())
    call = stock("torch._dynamo.variables.builtin:BuiltinVariable.call_function")
    return _held(tx, self.fn, args, kwargs) or call(self, tx, args, kwargs)


@replaces("GetAttrBuiltinVariable.call_function")
def call_getattr(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    call = stock("torch._dynamo.variables.builtin:GetAttrBuiltinVariable.call_function")
    return _held(tx, getattr, args, kwargs) or call(self, tx, args, kwargs)
