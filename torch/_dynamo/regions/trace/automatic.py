"""Calls of modules as automatic regions.

On under the flag and ``torch._dynamo.config.automatic_nested_compile_regions``.  The policy is in candidates.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch._dynamo.regions.facts import note_untried
from torch._dynamo.regions.frame import PerFrame, RegionCall, defined_at
from torch._dynamo.regions.source_names import name_of_source
from torch._dynamo.regions.trace.call import call_region
from torch._dynamo.regions.trace.candidates import Candidates
from torch._dynamo.regions.trace.objects import find_in_class, of_class


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


# Entries kept for each class of modules.
MAX_ENTRIES = 8
CANDIDATES: PerFrame[Candidates] = PerFrame(lambda _: Candidates())


def call_module(
    plain: Callable[..., VariableTracker],
    module: Any,
    tx: InstructionTranslatorBase,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    """The result of calling ``module``, as a region if it is a candidate; ``plain`` is Dynamo's own call."""
    candidates = CANDIDATES.of(tx.output)
    if not candidates.accepts(tx, module.value, module.source):
        if not candidates.has_refused(module.value):
            return plain(module, tx, args, kwargs)
        note_untried(of_class(type(module.value), "__qualname__"))
        with candidates.inside(module.value):
            return plain(module, tx, args, kwargs)
    where = f"{tx.f_code.co_filename}:{tx.lineno}"

    def traced(callee: Any, tx: Any, args: Any, kwargs: Any) -> VariableTracker:
        with candidates.inside(callee.value):
            return plain(callee, tx, args, kwargs)

    call = RegionCall(of_class(type(module.value), "__qualname__"), where, run=traced, automatic=True)
    call.defined, call.path = defined_at(find_in_class(type(module.value), "forward")), name_of_source(module.source)
    try:
        result = call_region(tx, call, module, list(args), kwargs, MAX_ENTRIES)
    except Exception:
        candidates.refuse(module.value)
        raise
    candidates.learn(module.value, call.reused, call.miss.reason if call.miss is not None else None)
    return result
