"""Overlay of torch._dynamo.variables.lazy: reports to region calls which sources Dynamo reaches or hashes."""

from __future__ import annotations

from typing import Any

from torch._dynamo.regions.trace.events import TRACE_EVENTS

from torch_regions.overlay import replaces, stock


@replaces("LazyVariableTracker.create")
@staticmethod
def create(value: Any, source: Any, *, tx: Any = None, **options: Any) -> Any:
    for events in TRACE_EVENTS:
        events.reached.add(source)
    return stock("torch._dynamo.variables.lazy:LazyVariableTracker.create")(value, source, tx=tx, **options)


@replaces("LazyConstantVariable.create")
@staticmethod
def create_constant(value: Any, source: Any, **options: Any) -> Any:
    for events in TRACE_EVENTS:
        events.reached.add(source)
    return stock("torch._dynamo.variables.lazy:LazyConstantVariable.create")(value, source, **options)


@replaces("LazyVariableTracker.is_hashable_lazy")
def is_hashable_lazy(self: Any) -> bool:
    hashable: bool = stock("torch._dynamo.variables.lazy:LazyVariableTracker.is_hashable_lazy")(self)
    if hashable:
        for events in TRACE_EVENTS:
            events.hashed.add(self.original_source())
    return hashable
