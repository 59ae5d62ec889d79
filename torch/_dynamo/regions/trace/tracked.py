"""Makes the objects that stamped calls read known to the frame, as if the calls had been traced.

Tracing a call makes a tracker of every object that it reads.  A stamped call would spend most of its time on that, and
the program seldom reads these objects again.  So a tracker is made when Dynamo checks whether it tracks the object: at
the source by which the stamped call read the object, where its guards are.
"""

from __future__ import annotations

import contextlib
import itertools
import types
from typing import TYPE_CHECKING, Any

from torch._dynamo import variables
from torch._dynamo.regions.trace.events import RECORDERS
from torch._dynamo.regions.trace.substitution import STAMPED, GuardActions, SourceBinding
from torch._dynamo.source import CellContentsSource
from torch._dynamo.variables.base import VariableTracker


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import GuardsSet


class StampedObjects(dict[int, Any]):
    """Dynamo's table of tracked objects by id, extended by the objects that stamped calls read."""

    def __init__(self, tracked: dict[int, Any], tx: InstructionTranslatorBase) -> None:
        super().__init__(tracked)
        self._tx = tx

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self._track(key)

    def _track(self, key: Any) -> bool:
        from torch._dynamo.variables.builder import VariableBuilder

        output = self._tx.output
        actions, binding = STAMPED.of(output).pop(key, (None, None))
        if actions is None or binding is None:
            return False
        guards = output.guards
        before = len(guards)
        with contextlib.ExitStack() as stack:
            for recorder in RECORDERS.of(output):
                stack.enter_context(recorder.unrecorded())
            source = actions.where(binding)
            if type(binding.value) is types.CellType:
                _track_cell(self._tx, source, binding.value, actions)
            else:
                # Not lazy: a lazy tracker of the object, at the same source, may be what asks for this one.
                VariableBuilder(self._tx, source, allow_lazy_constant=False)(binding.value)
        _drop_repeated(guards, len(guards) - before)
        return super().__contains__(key)


def _track_cell(tx: InstructionTranslatorBase, source: Any, cell: types.CellType, actions: GuardActions) -> None:
    """Tracks a cell as Dynamo does where it calls the function that holds the cell."""
    function: Any = actions.resolve(source.base.base)
    name = function.__code__.co_freevars[source.index]
    try:
        at = CellContentsSource(source, "cell_contents", freevar_name=name)
        contents: VariableTracker = VariableTracker.build(tx, cell.cell_contents, at)
    except ValueError:
        contents = variables.DeletedVariable()  # an empty cell
    tx.output.side_effects.track_cell_existing(source, cell, contents)


def _drop_repeated(guards: GuardsSet, latest: int) -> None:
    """Drops those of the ``latest`` guards that the stamped call has made already.

    Stock's set treats guards with different stacks as different.  Each would be built, and would check the object.
    """
    for guard in list(itertools.islice(reversed(guards.inner), latest)):
        of_source = guards.source_to_guards[guard.originating_source]
        if any(g is not guard and _maker_key(g.create_fn) == _maker_key(guard.create_fn) for g in of_source):
            guards.inner.discard(guard)
            of_source[:] = [g for g in of_source if g is not guard]


def _maker_key(make: Any) -> tuple[Any, ...]:
    """A guard's maker as a function and its bound arguments."""
    return getattr(make, "func", make), getattr(make, "args", ()), getattr(make, "keywords", {})


def track_later(tx: InstructionTranslatorBase, actions: GuardActions, bindings: list[SourceBinding]) -> None:
    """Makes the objects at ``bindings`` known to the frame by their sources in the call of ``actions``."""
    side_effects = tx.output.side_effects
    if type(side_effects.id_to_variable) is not StampedObjects:
        side_effects.id_to_variable = StampedObjects(side_effects.id_to_variable, tx.output.root_tx)
    for binding in bindings:
        actions.remember(binding)
