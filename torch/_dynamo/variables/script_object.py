"""Overlay of torch._dynamo.variables.script_object: the calls of regions hear which opaque objects are looked into."""

from __future__ import annotations

from typing import Any

from torch._dynamo.regions.trace.events import TRACE_EVENTS

from torch_regions.overlay import replaces, stock


@replaces("TorchScriptObjectVariable.as_python_constant")
def as_python_constant(self: Any) -> Any:
    for events in TRACE_EVENTS:
        events.opened.add(self.source)
    return stock("torch._dynamo.variables.script_object:TorchScriptObjectVariable.as_python_constant")(self)
