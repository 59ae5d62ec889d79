"""Calls of modules as automatic regions.

On under the flag and ``torch._dynamo.config.automatic_nested_compile_regions``.  The policy is in candidates.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch._dynamo.regions.facts import note_untried
from torch._dynamo.regions.frame import PerFrame, RegionCall, defined_at
from torch._dynamo.regions.release import bound_to
from torch._dynamo.regions.source_names import name_of_source
from torch._dynamo.regions.trace.call import call_region
from torch._dynamo.regions.trace.candidates import Candidates
from torch._dynamo.regions.trace.module_hooks import calls_hooks
from torch._dynamo.regions.trace.objects import find_in_class, of_class
from torch._dynamo.variables.functions import UserMethodVariable


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
    if candidates.leaves_out_hooks(module.value):
        with _forward_only(module, where):
            return plain(module, tx, args, kwargs)
    return _call(plain, module, module, tx, args, kwargs, where)


def _call(
    plain: Callable[..., VariableTracker],
    callee: Any,
    module: Any,
    tx: InstructionTranslatorBase,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
    where: str,
) -> VariableTracker:
    """The result of calling ``callee``, a module or its ``forward``, as a region."""
    candidates, kind = CANDIDATES.of(tx.output), type(module.value)

    def traced(callee: Any, tx: Any, args: Any, kwargs: Any) -> VariableTracker:
        with candidates.inside(module.value):
            return plain(callee, tx, args, kwargs)

    call = RegionCall(of_class(kind, "__qualname__"), where, run=traced, automatic=True)
    call.defined, call.path = defined_at(find_in_class(kind, "forward")), name_of_source(module.source)
    try:
        result = call_region(tx, call, callee, list(args), kwargs, MAX_ENTRIES)
    except Exception:
        candidates.refuse(module.value)
        raise
    candidates.learn(module.value, call.reused, call.miss.reason if call.miss is not None else None)
    return result


# (module, where it is called) of the calls that Dynamo has begun and whose ``forward`` becomes a region.
_FORWARDS: list[tuple[Any, str]] = []


@contextlib.contextmanager
def _forward_only(module: Any, where: str) -> Iterator[None]:
    begun = (module, where)
    _FORWARDS.append(begun)
    try:
        yield
    finally:
        if begun in _FORWARDS:  # it has not come to the call of ``forward``
            _FORWARDS.remove(begun)


class ForwardWithoutHooks(UserMethodVariable):
    """The method ``forward`` as ``Module.__call__`` finds it between the hooks of a module."""

    def call_function(  # type: ignore[override]
        self, tx: InstructionTranslatorBase, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        me: Any = self
        return _call(UserMethodVariable.call_function, me.method, me.module, tx, args, kwargs, me.where)


def forward_of(module: Any, tx: InstructionTranslatorBase, found: VariableTracker) -> VariableTracker:
    """What Dynamo has ``found`` as ``module.forward``; a region, if the hooks are left out of the call's."""
    if not _FORWARDS or _FORWARDS[-1][0] is not module or not calls_hooks(tx.f_code):
        return found
    _, where = _FORWARDS.pop()
    if type(found) is not UserMethodVariable or bound_to(found) is not module:
        return found
    made: Any = ForwardWithoutHooks.__new__(ForwardWithoutHooks)
    vars(made).update(vars(found), method=found, module=module, where=where)
    return made
