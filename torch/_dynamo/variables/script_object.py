"""Overlay of torch._dynamo.variables.script_object: reports reads of an opaque object's contents to region calls."""

from __future__ import annotations

from typing import Any

from torch._dynamo.regions.trace.events import TRACE_EVENTS

from torch_regions.overlay import replaces, stock


def _opened(tracker: Any) -> None:
    for events in TRACE_EVENTS:
        events.opened.add(tracker.source)


@replaces("CustomClassObjectVariable.as_python_constant")
def as_python_constant(self: Any) -> Any:
    _opened(self)
    return stock("torch._dynamo.variables.script_object:CustomClassObjectVariable.as_python_constant")(self)


# The name of the same class in 2.13.
@replaces("TorchScriptObjectVariable.as_python_constant")
def as_python_constant_of_script_object(self: Any) -> Any:
    _opened(self)
    return stock("torch._dynamo.variables.script_object:TorchScriptObjectVariable.as_python_constant")(self)
