"""Overlay of torch._dynamo.variables.nn_module: calls of repeated modules are regions by themselves, under the flag."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch._dynamo.region_calls import RegionCall
from torch._dynamo.region_entries import call_region
from torch._dynamo.region_options import automatic
from torch._dynamo.variables.nn_module import UnspecializedBuiltinNNModuleVariable, UnspecializedNNModuleVariable

from torch_regions.overlay import replaces, stock


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


# Entries that are kept of a class.
MAX_ENTRIES = 8


@replaces("UnspecializedNNModuleVariable.call_function")
def call_function(
    self: Any, tx: InstructionTranslatorBase, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    plain = stock("torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.call_function")
    if not automatic() or not _may_be_region(self, tx):
        return plain(self, tx, args, kwargs)
    candidates = tx.output.region_tracker.calls.candidates
    if not candidates.accepts(tx, self.value, self.source):
        with candidates.inside(self.value) if candidates.has_refused(self.value) else contextlib.nullcontext():
            return plain(self, tx, args, kwargs)
    where = f"{tx.f_code.co_filename}:{tx.lineno}"

    def traced(callee: Any, tx: Any, args: Any, kwargs: Any) -> VariableTracker:
        with candidates.inside(callee.value):
            return plain(callee, tx, args, kwargs)

    call = RegionCall(type(self.value).__qualname__, where, run=traced, automatic=True)
    try:
        result = call_region(tx, call, self, list(args), kwargs, MAX_ENTRIES)
    except Exception:
        candidates.refuse(self.value)
        raise
    candidates.learn(self.value, call)
    return result


def _may_be_region(module: Any, tx: InstructionTranslatorBase) -> bool:
    """Whether the call is one that others can be compared with, whatever the module is."""
    # A subclass of the tracker has a say of its own about its modules: FSDP manages them.
    plainly = type(module) in (UnspecializedNNModuleVariable, UnspecializedBuiltinNNModuleVariable)
    return plainly and module.source is not None and len(tx.output.tracers) == 1
