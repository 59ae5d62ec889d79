"""Expressions that say how a deferred constant is computed from what a call is made with."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._dynamo.regions.trace.substitution import resolver
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.misc import CellVariable


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source


# Longer values of constants say less than they take.
_LONGEST = 60


class ArgumentValue(NamedTuple):
    """A constant among the arguments, by its number in their order."""

    number: int

    def __str__(self) -> str:
        return f"constant {self.number + 1} of the arguments"


class SourceValue(NamedTuple):
    """The constant at a source."""

    source: Source

    def __str__(self) -> str:
        return self.source.name


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

    def __str__(self) -> str:
        return f"{self.fn.__name__}({', '.join(map(str, self.parts))})"


Expression = ArgumentValue | SourceValue | BindingValue | Applied


def value_of(expression: Any, leaf: Callable[[Any], Any]) -> Any:
    """The value of ``expression``; ``leaf`` gives that of an argument, a source or a binding.

    Raises what the functions in it raise.
    """
    if isinstance(expression, Applied):
        return expression.fn(*(value_of(part, leaf) for part in expression.parts))
    return leaf(expression) if isinstance(expression, (ArgumentValue, SourceValue, BindingValue)) else expression


def constant_text(key: Any) -> str:
    """The constant that has ``key``, or the key if it has no short text."""
    kind, value = key if isinstance(key, tuple) and len(key) == 2 else (None, key)
    return key_text(struct.unpack("<d", value)[0] if kind is float else value)


def unlike_text(value: Any, key: Any) -> str:
    """What a constant is, and what one that has ``key`` was in an earlier call."""
    return f"{key_text(value)}, not {constant_text(key)}"


def key_text(value: Any) -> str:
    """A part of a key as text, shortened."""
    if isinstance(value, tuple):
        # A size is keyed by its kind and its value.
        return "(" + ", ".join(key_text(each) for each in value) + ")"
    text = repr(value) if isinstance(value, (str, bytes, int, float, bool, type(None))) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
