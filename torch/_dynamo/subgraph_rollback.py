"""Takes back what a body that could not be traced did to the record of side effects.

Note [A body that could not be traced]
Dynamo usually throws the whole trace away then, but a caller may catch the exception and go on (autograd.Function
traces a backward a second time). What the body did to the record of side effects is taken back: attributes, hooks, new
objects. Facts stay: a realized tracker of an existing object, or an input of the outer graph, may already be in use.
The contents of a list or dict that the body changed are in its tracker, not in the record, and stay changed; without
side effects being allowed no such change gets that far. An exception of the user's own is none of this. It happened in
the program, and so did what came before it.
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
    """A copy of a container, and of the containers in a dict; anything else is itself."""
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return type(value)(value) if isinstance(value, (list, set, OrderedSet)) else value


class _Record:
    """The record of side effects as it was, to be put back in place. See Note [A body that could not be traced]"""

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
