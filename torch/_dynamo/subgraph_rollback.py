"""Undoes what a body that could not be traced did to the record of side effects.

Note [A body that could not be traced]
Dynamo usually discards the whole trace then, but a caller may catch the exception and continue (autograd.Function
traces a backward a second time). So the body's changes to the record of side effects are undone: attributes, hooks, new
objects. Facts stay, because a realized tracker of an existing object, or an input of the outer graph, may already be in
use. The contents of a list or dict that the body changed are in its tracker, not in the record, and stay changed; where
side effects are not allowed, no such change is made. For an exception that the user's code raises, nothing is undone:
the exception, and the changes before it, happened in the program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch._dynamo.exc import ObservedException
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew
from torch.utils._ordered_set import OrderedSet


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


def _copied(value: Any) -> Any:
    """A copy of a container and, for a dict, of the containers in it; anything else is returned as it is."""
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return type(value)(value) if isinstance(value, (list, set, OrderedSet)) else value


class _Record:
    """The record of side effects at one time, to be restored in place. See Note [A body that could not be traced]"""

    def __init__(self, side_effects: SideEffects) -> None:
        self.side_effects = side_effects
        self.known = frozenset(side_effects.id_to_variable)
        self.fields = {k: _copied(v) for k, v in vars(side_effects).items() if k not in ("id_to_variable", "keepalive")}

    def put_back(self, tx: InstructionTranslatorBase) -> None:
        record, latest = self.side_effects, tx.output.side_effects
        vars(record).update(self.fields)
        new = (AttributeMutationNew, ValueMutationNew)
        seen = {**record.id_to_variable, **latest.id_to_variable}
        facts = {k: v for k, v in seen.items() if k in self.known or not isinstance(v.mutation_type, new)}
        held = {id(x): x for x in (*record.keepalive, *latest.keepalive)}
        record.id_to_variable = facts
        record.keepalive = [x for k, x in held.items() if k in facts]
        tx.output.side_effects = record


@contextlib.contextmanager
def undone_on_failure(tx: InstructionTranslatorBase) -> Iterator[None]:
    before = _Record(tx.output.side_effects)
    try:
        yield
    except ObservedException:
        raise
    except BaseException:
        before.put_back(tx)
        raise
