"""Expressions that say how a deferred constant is computed from what a call is made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._dynamo.regions.trace.substitution import resolver
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.misc import CellVariable


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source


class ArgumentValue(NamedTuple):
    """A constant among the arguments, by its number in their order."""

    number: int


class SourceValue(NamedTuple):
    """The constant at a source."""

    source: Source


class BindingValue(NamedTuple):
    """The constant that a global or a cell is bound to: a cell by the frame, a global by the frame or earlier."""

    # A global's source, since Dynamo makes a new tracker each time that the global is bound; a cell's tracker.
    where: Source | CellVariable
    name: str

    def load(self, tx: InstructionTranslatorBase) -> VariableTracker:
        """The tracker that it is bound to now."""
        side_effects = tx.output.side_effects
        if isinstance(self.where, CellVariable):
            return side_effects.load_attr(self.where, self.name)
        bound = tx.output.root_tx.symbolic_globals
        if self.name not in bound:
            return VariableTracker.build(tx, resolver(tx)(self.where), self.where)
        return side_effects.load_attr(side_effects[bound[self.name]], self.name)


class Applied(NamedTuple):
    """A pure function applied to ``parts``: expressions and plain constants."""

    fn: Callable[..., Any]
    parts: tuple[Any, ...]

    @property
    def depth(self) -> int:
        return 1 + max((p.depth for p in self.parts if isinstance(p, Applied)), default=0)


Expression = ArgumentValue | SourceValue | BindingValue | Applied


def value_of(expression: Any, leaf: Callable[[Any], Any]) -> Any:
    """The value of ``expression``; ``leaf`` gives that of an argument, a source or a binding.

    Raises what the functions in it raise.
    """
    if isinstance(expression, Applied):
        return expression.fn(*(value_of(part, leaf) for part in expression.parts))
    return leaf(expression) if isinstance(expression, (ArgumentValue, SourceValue, BindingValue)) else expression
