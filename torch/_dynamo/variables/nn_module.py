"""Overlay of torch._dynamo.variables.nn_module: under the flag, calls of repeated modules become regions.

Also reports reads of a module's hooks to region calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._dynamo.regions.options import automatic
from torch._dynamo.regions.trace.automatic import call_module, forward_of
from torch._dynamo.regions.trace.events import TRACE_EVENTS, note_hooks
from torch._dynamo.variables.nn_module import UnspecializedBuiltinNNModuleVariable, UnspecializedNNModuleVariable

from torch_regions.overlay import replaces, stock


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


# (module, frame) of the calls of modules that Dynamo has begun: it looks into the dicts of hooks for their lengths.
_CALLS: list[tuple[Any, Any]] = []


@replaces("UnspecializedNNModuleVariable.call_function")
def call_function(
    self: Any, tx: InstructionTranslatorBase, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    plain = stock("torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.call_function")
    regions = automatic()
    if not regions and not TRACE_EVENTS:
        return plain(self, tx, args, kwargs)
    _CALLS.append((self, tx))
    try:
        if regions and _may_be_region(self, tx):
            return call_module(plain, self, tx, args, kwargs)
        return plain(self, tx, args, kwargs)
    finally:
        _CALLS.pop()


def _reads(module: Any, tx: InstructionTranslatorBase, name: str) -> None:
    """Reports what the program, and not Dynamo's call of ``module``, reads."""
    called, by = _CALLS[-1] if _CALLS else (None, None)
    if called is not module or by is not tx:
        note_hooks(module, name, tx.f_code)


@replaces("UnspecializedNNModuleVariable.var_getattr")
def var_getattr(self: Any, tx: InstructionTranslatorBase, name: str) -> VariableTracker:
    if TRACE_EVENTS and name.startswith("_forward"):
        _reads(self, tx, name)
    found = stock("torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.var_getattr")(self, tx, name)
    return forward_of(self, tx, found) if name == "forward" else found


# The name of the same method in 2.15.
@replaces("UnspecializedNNModuleVariable.tp_getattro_impl")
def tp_getattro_impl(self: Any, tx: InstructionTranslatorBase, name: str) -> VariableTracker:
    if TRACE_EVENTS and name.startswith("_forward"):
        _reads(self, tx, name)
    found = stock("torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.tp_getattro_impl")(self, tx, name)
    return forward_of(self, tx, found) if name == "forward" else found


def _may_be_region(module: Any, tx: InstructionTranslatorBase) -> bool:
    """Whether the call can be compared with others, whatever the module is."""
    # A subclass of the tracker treats its modules in its own way: FSDP manages them.
    plainly = type(module) in (UnspecializedNNModuleVariable, UnspecializedBuiltinNNModuleVariable)
    return plainly and module.source is not None and len(tx.output.tracers) == 1
