"""Overlay of torch._dynamo.symbolic_convert: attributes and formatted text of deferred values.

These hooks act from 2.15 on; before, Dynamo handles both as calls of builtin functions (variables/builtin.py).
"""

from __future__ import annotations

from typing import Any

from torch._dynamo.regions.trace.events import RECORDERS
from torch._dynamo.variables.constant import ConstantVariable

from torch_regions.overlay import replaces, stock


def _deferred(tx: Any, fn: Any, *args: Any) -> Any:
    """The result of calling ``fn`` on deferred values; None if Dynamo computes it as usual."""
    recorders = RECORDERS.of(tx.output)
    return recorders[-1].deferred.apply(tx, fn, list(args)) if recorders else None


@replaces("InstructionTranslatorBase._load_attr")
def _load_attr(self: Any, attr: Any) -> None:
    found = _deferred(self, getattr, self.stack[-1], ConstantVariable.create(attr))
    if found is None:
        stock("torch._dynamo.symbolic_convert:InstructionTranslatorBase._load_attr")(self, attr)
    else:
        self.popn(1)
        self.push(found)


@replaces("InstructionTranslatorBase._format_value")
def _format_value(self: Any, fmt_spec: Any, flags: int) -> None:
    found = None
    if not flags & 0x03 and type(fmt_spec) is ConstantVariable:
        pattern = ConstantVariable.create("{:" + fmt_spec.value + "}")
        found = _deferred(self, str.format, pattern, self.stack[-1])
    if found is None:
        stock("torch._dynamo.symbolic_convert:InstructionTranslatorBase._format_value")(self, fmt_spec, flags)
    else:
        self.popn(1)
        self.push(found)
