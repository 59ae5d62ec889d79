"""Overlay of torch._dynamo.side_effects: reports changes, and reads of changed values, to recorders of region calls."""

from __future__ import annotations

from typing import Any

from torch._dynamo.regions.trace.events import RECORDERS, note_change

from torch_regions.overlay import replaces, stock


def _observers(side_effects: Any) -> list[Any]:
    output_graph = side_effects.output_graph_weakref()
    return RECORDERS.of(output_graph) if output_graph is not None else []


@replaces("SideEffects.check_allowed_side_effect")
def check_allowed_side_effect(self: Any, item: Any) -> bool:
    for recorder in _observers(self):
        recorder.changed.append(item)
    note_change(self.output_graph_weakref(), item)
    return stock("torch._dynamo.side_effects:SideEffects.check_allowed_side_effect")(self, item)


@replaces("SideEffects.load_attr")
def load_attr(self: Any, item: Any, name: str, deleted_ok: bool = False, check: bool = False) -> Any:
    found = stock("torch._dynamo.side_effects:SideEffects.load_attr")(self, item, name, deleted_ok, check)
    for recorder in _observers(self):
        found = recorder.load(item, name, found)
    return found


@replaces("SideEffects.load_cell")
def load_cell(self: Any, cellvar: Any) -> Any:
    found = stock("torch._dynamo.side_effects:SideEffects.load_cell")(self, cellvar)
    for recorder in _observers(self):
        # Dynamo knows the contents and does not read their source again.
        recorder.loaded.append(found)
    return found
