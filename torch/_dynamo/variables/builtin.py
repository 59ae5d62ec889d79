"""Overlay of torch._dynamo.variables.builtin: builtin functions of deferred constants, and reports of isinstance."""

from __future__ import annotations

import operator
import types
from typing import Any

from torch._dynamo.regions.trace.events import RECORDERS, TRACE_EVENTS, note_check, note_identity, note_text
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import UserMethodVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from torch_regions.overlay import replaces, stock


# Types of constants of which equal ones may be different objects.
_COMPARED_BY_VALUE = (int, float, complex, str, bytes)
_COMPARISONS = frozenset((operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge))
_HIDING = (types.MethodType, types.CellType)


def _is_of_equals(args: list[Any]) -> bool:
    """Whether ``args`` are equal constants: what ``is`` says of them depends on where they come from."""
    values = [known.value for a in args if type(known := a.unwrap()) is ConstantVariable]
    if len(values) < 2 or type(values[0]) is not type(values[1]):
        return False
    return any(type(values[0]) is each for each in _COMPARED_BY_VALUE) and bool(values[0] == values[1])


def _compares_hidden(fn: Any, args: list[Any]) -> bool:
    """Whether ``fn`` compares methods or cells: Dynamo guards neither what methods are bound to nor what cells hold."""
    return fn in _COMPARISONS and any(map(_hides, args))


def _hides(tracker: Any) -> bool:
    if not tracker.is_realized():
        return False  # to look would be to read it
    known = tracker.unwrap()
    if not isinstance(known, UserDefinedObjectVariable):
        return isinstance(known, UserMethodVariable)
    return any(type(known.value) is each for each in _HIDING)


def _held(tx: Any, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    recorders = RECORDERS.of(tx.output)
    return recorders[-1].deferred.apply(tx, fn, args) if recorders and not kwargs else None


@replaces("BuiltinVariable.call_function")
def call_function(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if self.fn is isinstance and TRACE_EVENTS and len(args) == 2:
        note_check(args[1].unwrap())
    call = stock("torch._dynamo.variables.builtin:BuiltinVariable.call_function")
    found = _held(tx, self.fn, args, kwargs) or call(self, tx, args, kwargs)
    if TRACE_EVENTS and self.fn in (str, repr, format, ascii) and args:
        note_text(self.fn, args[0])
    # Not so for id(): Dynamo guards the identity of an object with a source, and makes up a number for any other.
    if TRACE_EVENTS and self.fn in (operator.is_, operator.is_not) and _is_of_equals(args):
        note_identity(self.fn.__name__)
    if TRACE_EVENTS and _compares_hidden(self.fn, args):
        note_identity(f"{self.fn.__name__} of methods or cells")
    return found


@replaces("GetAttrBuiltinVariable.call_function")
def call_getattr(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    call = stock("torch._dynamo.variables.builtin:GetAttrBuiltinVariable.call_function")
    return _held(tx, getattr, args, kwargs) or call(self, tx, args, kwargs)
