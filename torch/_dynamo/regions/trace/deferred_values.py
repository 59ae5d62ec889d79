"""The deferred constants of one call while it is traced, and what became of them.

See Note [A constant is read when somebody asks for its value] in deferred.py.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeVar

from torch._dynamo.regions.keys import constant_key
from torch._dynamo.regions.trace.containers import INDEXED, Path, element_at, elements, lazy_tracker
from torch._dynamo.regions.trace.deferred import HELD_TYPES, Held, HeldConstant, HeldList, constant_of, held_type
from torch._dynamo.regions.trace.events import RECORDERS, Recorder
from torch._dynamo.regions.trace.expressions import Applied, Behind, Bound, Expression
from torch._dynamo.source import GlobalSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.lazy import LazyConstantVariable
from torch._dynamo.variables.lists import ListVariable
from torch._dynamo.variables.misc import CellVariable, GetAttrVariable


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source


# An expression that grows beyond this is pinned: a loop in the body would make a tower of it.
MAX_DEPTH = 16
# Pure functions of constants, whose result is a constant of a type that depends on the operands' types alone.
_PURE: frozenset[Any] = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.mod, operator.floordiv, operator.truediv),
        *(operator.iadd, operator.isub, operator.imul, operator.imod, operator.ifloordiv),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
        *(operator.neg, operator.pos, operator.not_, operator.index, abs, str, str.format),
    }
)


def _unseen_global(tracker: Any) -> GlobalSource | None:
    """The source of a plain constant of a global that nobody has looked at."""
    if type(tracker) is not LazyConstantVariable or tracker.is_realized() or tracker.peek_type() not in HELD_TYPES:
        return None
    source = tracker.original_source()
    return source if type(source) is GlobalSource else None


def _of_ended(tracker: VariableTracker, holding: Holding) -> VariableTracker:
    """What ``tracker`` stands for to the call of ``holding``, if it was held by a call inside that has ended."""
    found = tracker
    while type(found) is HeldConstant and found.holding is None and not holding.made(found):
        found = found.held
    return found if type(found) is HeldConstant else tracker


AnyHeld = TypeVar("AnyHeld", bound=Held)


class Holding:
    """The held constants of one call while it is traced, and what became of them."""

    def __init__(self, observer: Recorder) -> None:
        self.observer = observer
        self._held: list[Held] = []
        self._ids: set[int] = set()
        # Expressions, and keys of the values that somebody has looked at. No dict: ``f * 0.0`` equals ``f * -0.0``.
        self.pins: list[tuple[Expression, Hashable]] = []
        self.pinned: set[int] = set()
        # Whether somebody has looked at a held list.
        self.saw_a_list = False
        # Sources of numbers that were used as an index only (if they are not among the sources that were read).
        self.indices: set[Source] = set()
        self.paths: list[Path] = []
        # Other elements of the same containers, which the call did not look at.
        self.untouched: set[Source] = set()
        # what a global or cell is bound to -> the held constant that stands for it
        self.bound: dict[Bound, HeldConstant] = {}

    def _is_only(self, tx: InstructionTranslatorBase) -> bool:
        """Whether this is the only call that is being traced."""
        recorders = RECORDERS.of(tx.output)
        return len(recorders) == 1 and recorders[0].holding is self

    def add(self, held: AnyHeld) -> AnyHeld:
        held.holding = self
        self._held.append(held)
        self._ids.add(id(held))
        return held

    def made(self, tracker: VariableTracker) -> bool:
        return id(tracker) in self._ids

    def pin(self, held: Held) -> None:
        held.holding = None
        if isinstance(held, HeldConstant):
            self.pinned.add(id(held))
            self.pins.append((held.expression, constant_key(held.held_value)))
        else:
            self.saw_a_list = True

    def end(self) -> None:
        """Lets every held constant be what it stands for."""
        for held in self._held:
            held.holding = None
        for path in self.paths:
            trackers: list[Any] = [tracker for _, tracker in elements(path.holder)]
            self.untouched |= {t.original_source() for t in trackers if not t.is_realized() and t.source is not None}
        self.untouched.difference_update(path.element for path in self.paths)

    def expression_of(self, tracker: VariableTracker) -> Expression | None:
        """The expression of a constant that was held to the end."""
        tracker = _of_ended(tracker, self)
        if type(tracker) is HeldConstant and self.made(tracker) and id(tracker) not in self.pinned:
            return tracker.expression
        return None

    def load_bound(self, tracker: VariableTracker, name: str, value: VariableTracker) -> VariableTracker:
        """What stands for a constant that the frame has bound a global or a cell to before the call."""
        if held_type(value) is None:
            return value
        return self._bound(Bound(tracker if isinstance(tracker, CellVariable) else tracker.source, name), value)  # type: ignore[arg-type]

    def _bound(self, where: Bound, value: VariableTracker) -> HeldConstant:
        if where not in self.bound:
            self.bound[where] = self.add(HeldConstant(value, constant_of(value), where))
        return self.bound[where]

    def _globals(self, tx: InstructionTranslatorBase, args: list[VariableTracker]) -> list[VariableTracker]:
        """``args``, if they are constants, with those held back that are globals nobody has bound or looked at.

        They are guarded as if somebody looked: the program does, though nothing may come of it here.
        """
        unseen = [_unseen_global(a) for a in args]
        constants = all(s is not None or held_type(a) is not None for a, s in zip(args, unseen, strict=True))
        if not constants or not any(unseen) or not self._is_only(tx):
            return args
        with self.observer.looks_aside():
            looked = [a if source is None else a.realize() for a, source in zip(args, unseen, strict=True)]
        if not all(type(a) is ConstantVariable for a, s in zip(looked, unseen, strict=True) if s is not None):
            self.observer.sources.update(s for s in unseen if s is not None)  # a number that Dynamo treats as symbolic
            return looked
        pairs = zip(looked, unseen, strict=True)
        return [a if source is None else self._bound(Bound(source, source.global_name), a) for a, source in pairs]

    def apply(self, tx: InstructionTranslatorBase, fn: Any, args: list[VariableTracker]) -> VariableTracker | None:
        """The held result of a builtin function; None when it has to be computed as usual."""
        if fn is getattr and type(args[0]) is HeldList and args[0].holding is self and constant_of(args[1]) == "append":
            return GetAttrVariable(args[0], "append")
        if fn is not operator.getitem and fn not in _PURE:
            return None
        args = [_of_ended(a, self) for a in args]
        if fn is not operator.getitem:
            args = self._globals(tx, args)
        if any(type(a) is HeldConstant and a.holding not in (None, self) for a in args):
            return None  # held by the call around this one, and come by unseen: looked at as usual
        if fn is operator.getitem:
            return self._index(tx, *args) if len(args) == 2 else None
        own = [type(a) is HeldConstant and a.holding is self for a in args]
        if not any(own) or any(held_type(a) is None for a in args):
            return None
        held: list[Any] = args
        parts = [a.expression if mine else constant_of(a) for a, mine in zip(held, own, strict=True)]
        expression = Applied(fn, tuple(parts))
        if expression.depth > MAX_DEPTH:
            return None
        below = [a.held if mine else a for a, mine in zip(held, own, strict=True)]
        try:
            value = fn(*map(constant_of, args))
        except Exception:
            return None  # raised as usual
        if type(value) not in HELD_TYPES:
            return None
        # To the call around this one, the result is an expression of what it holds itself.
        outer = next((b.holding for b in below if type(b) is HeldConstant and b.holding is not None), None)
        made = outer.apply(tx, fn, below) if outer is not None else None
        return self.add(HeldConstant(made or ConstantVariable.create(value), value, expression))

    def _index(
        self, tx: InstructionTranslatorBase, container: VariableTracker, key: VariableTracker
    ) -> VariableTracker | None:
        expression = self._index_expression(tx, key)
        if expression is None:
            return None
        found = container.realize()
        lazy: Any = key
        element = element_at(tx, found, lazy.held_value if type(key) is HeldConstant else lazy.original_value())
        if element is None and type(found) in (ListVariable, ConstDictVariable):
            INDEXED.of(tx.output)[id(found)] = found
        if element is None or (isinstance(expression, Behind) and not self._looks_constant(tx, key)):
            return None
        value, source = element.original_value(), element.original_source()  # type: ignore[attr-defined]
        if tx.output.variable_tracker_cache.get(source) is element:
            del tx.output.variable_tracker_cache[source]
        assert found.source is not None
        self.paths.append(Path(found.source, found, expression, source, element))
        return lazy_tracker(type(element), value, source)

    def _index_expression(self, tx: InstructionTranslatorBase, key: VariableTracker) -> Expression | None:
        if not self._is_only(tx):
            return None
        if type(key) is HeldConstant:
            return key.expression if key.holding is self else None
        if type(key) is LazyConstantVariable and not key.is_realized():
            return Behind(key.original_source()) if key.peek_type() in (int, str) else None
        return None

    def _looks_constant(self, tx: InstructionTranslatorBase, key: Any) -> bool:
        """Guards ``key`` as realizing it does; whether it is a constant, no number that Dynamo treats as symbolic."""
        source = key.original_source()
        with self.observer.looks_aside():
            looked = LazyConstantVariable.create(key.original_value(), source).realize()
        self.indices.add(source)
        return type(looked) is ConstantVariable
