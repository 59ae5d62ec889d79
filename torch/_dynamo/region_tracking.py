"""Objects that stamped calls met: the frame knows them from then on, as if the calls had been traced.

Tracing a call makes a tracker of every object that it meets.  A stamped call would spend most of its time on that, and
the program seldom meets these objects again.  So the trackers are made when Dynamo asks whether it tracks an object: at
the source by which the stamped call met it, where its guards are.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch._dynamo.region_transport import Fates, Place


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


class StampedObjects(dict[int, Any]):
    """Dynamo's table of tracked objects, by id, with those that stamped calls met."""

    def __init__(self, tracked: dict[int, Any], tx: InstructionTranslatorBase) -> None:
        super().__init__(tracked)
        self._tx = tx

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self._track(key)

    def _track(self, key: Any) -> bool:
        from torch._dynamo.variables.builder import VariableBuilder

        calls = self._tx.output.region_tracker.calls
        fates, place = calls.stamped.pop(key, (None, None))
        if fates is None or place is None:
            return False
        with contextlib.ExitStack() as stack:
            for observer in calls.observers:
                stack.enter_context(observer.looks_aside())
            VariableBuilder(self._tx, fates.transport.of(place))(place.value)
        return super().__contains__(key)


def track_later(tx: InstructionTranslatorBase, fates: Fates, places: list[Place]) -> None:
    """Lets the frame know the objects at ``places`` by their sources in the call of ``fates``."""
    side_effects = tx.output.side_effects
    if type(side_effects.id_to_variable) is not StampedObjects:
        side_effects.id_to_variable = StampedObjects(side_effects.id_to_variable, tx.output.root_tx)
    for place in places:
        fates.remember(place)
