"""Overlay of torch._dynamo.variables.nn_module: under the flag, calls of repeated modules become regions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._dynamo.regions.options import automatic
from torch._dynamo.regions.trace.automatic import call_module
from torch._dynamo.variables.nn_module import UnspecializedBuiltinNNModuleVariable, UnspecializedNNModuleVariable

from torch_regions.overlay import replaces, stock


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


@replaces("UnspecializedNNModuleVariable.call_function")
def call_function(
    self: Any, tx: InstructionTranslatorBase, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    plain = stock("torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.call_function")
    if automatic() and _may_be_region(self, tx):
        return call_module(plain, self, tx, args, kwargs)
    return plain(self, tx, args, kwargs)


def _may_be_region(module: Any, tx: InstructionTranslatorBase) -> bool:
    """Whether the call can be compared with others, whatever the module is."""
    # A subclass of the tracker treats its modules in its own way: FSDP manages them.
    plainly = type(module) in (UnspecializedNNModuleVariable, UnspecializedBuiltinNNModuleVariable)
    return plainly and module.source is not None and len(tx.output.tracers) == 1
