"""Constants that a region's call is made with, deferred until the program looks at them.

Note [A constant is read when the program asks for its value]
A loop hands its index to each layer, a counter counts the calls, a layer's number finds its part
of a cache.  If the fingerprint held such values, no two calls would be alike.  Most bodies never
look: they pass the number on, store it, add one to it, or index a container with it.  Dynamo has
a tracker for what the program has not looked at yet, LazyVariableTracker, and realizes it when it
does.  So while a region is traced, its plain constants are lazy ones (``DeferredConstant``):

- an operator on held constants makes a held one, with the ``Expression`` that it was made by;
- to realize one *specializes* its expression: the entry holds only where it has the same value.  A
  comparison is an expression like any other, so ``if i < 3`` specializes a truth, not a number;
- what is stored or returned without that is an expression in the recipe, computed anew for each call;
- a list that is only appended to is deferred too (``DeferredList``): each call appends its own;
- an index into a list or dict makes a *path*: the element found becomes one more argument of
  the call, which stands at another index in another call.  That needs to be the only way in which
  the call reaches the element.  So the path leads to a tracker of its own, and what the container
  holds stays lazy: if that is realized, the call took another path.  Where it was realized before,
  the next call is traced with lazy trackers in its place (``Watch``).

A type is never held back: it is in the fingerprint.  When the call ends, held constants become
the constants that they stand for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch._dynamo.regions.release import settled
from torch._dynamo.regions.trace.events import Recorder
from torch._dynamo.regions.trace.expressions import ArgumentValue, Expression
from torch._dynamo.regions.trace.substitution import resolver
from torch._dynamo.source import ConstantSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lazy import LazyCache, LazyVariableTracker
from torch._dynamo.variables.lists import ListVariable, TupleVariable


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


# Kinds of constants that are held. None is no number, and asked for by every ``is None``.
DEFERRED_TYPES = (int, float, bool, str)


class DeferredOwner(Protocol):
    """What has the deferred values of one call; see deferred_values.py."""

    recorder: Recorder

    def specialize(self, held: Any) -> None:
        """Notes that the program has looked at ``held``."""


class Deferred(LazyVariableTracker):
    """Something that is specialized when it is realized while its call is traced."""

    _nonvar_fields: ClassVar[set[str]] = {"deferred", "held", *LazyVariableTracker._nonvar_fields}

    def __init__(self, held: VariableTracker, value: Any) -> None:
        # The cache is there for stock's methods; it is never asked to build anything.
        super().__init__(LazyCache(value, "held"), source=held.source)
        # What it stands for; it may be held by the call around this one.
        self.held = held
        # Set while the call is traced.
        self.deferred: DeferredOwner | None = None

    def realize(self) -> VariableTracker:
        if self.deferred is not None:
            self.deferred.specialize(self)
        return self.held.realize()

    def is_realized(self) -> bool:
        return self.deferred is None and self.held.is_realized()

    def unwrap(self) -> VariableTracker:
        return self if self.deferred is not None else self.held.unwrap()

    def original_source(self) -> Any:
        # Who asks goes on to ask the source what kind it is, also that of a number that the frame has computed.
        return self.realize().source or ConstantSource("held")

    def is_hashable_lazy(self) -> bool:
        return False  # its hash is its value

    def clone(self, **kwargs: Any) -> VariableTracker:
        return self.realize().clone(**kwargs)

    def set_name_hint(self, name: str) -> None:
        pass  # names are for tensors

    def set_source_location(self, source_location: Any) -> None:
        if self.is_realized():
            self.unwrap().set_source_location(source_location)

    def is_tensor(self) -> bool:
        return False

    def is_constant_none(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.held})"

    __repr__ = __str__


class DeferredConstant(Deferred):
    """A constant that the program has not looked at yet."""

    _nonvar_fields: ClassVar[set[str]] = {"expression", "deferred_value", *Deferred._nonvar_fields}

    def __init__(self, held: VariableTracker, value: Any, expression: Expression) -> None:
        super().__init__(held, value)
        self.deferred_value = value
        self.expression = expression

    def peek_type(self) -> type[Any]:
        return type(self.deferred_value)

    def python_type(self) -> type:
        return type(self.deferred_value)

    def lazy_isinstance(self, cls: type) -> bool:
        return issubclass(ConstantVariable, cls)

    def peek_value(self) -> Any:
        self.realize()
        return self.deferred_value

    original_value = peek_value


class DeferredList(Deferred):
    """A list that the program has not looked at yet.  Appending to it is not looking."""

    _nonvar_fields: ClassVar[set[str]] = {"appended", *Deferred._nonvar_fields}

    def __init__(self, held: VariableTracker) -> None:
        super().__init__(held, None)
        self.appended: list[VariableTracker] = []

    def peek_type(self) -> type[Any]:
        return list

    def peek_value(self) -> Any:
        self.realize()
        return []  # what kind of thing it is; what it holds are trackers

    original_value = peek_value

    def python_type(self) -> type:
        return list

    def lazy_isinstance(self, cls: type) -> bool:
        return issubclass(ListVariable, cls)

    def call_method(
        self, tx: InstructionTranslatorBase, name: str, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        if self.deferred is None or name != "append" or len(args) != 1 or kwargs:
            return self.realize().call_method(tx, name, args, kwargs)
        self.appended.append(args[0])
        with self.deferred.recorder.unrecorded():
            return self.held.call_method(tx, name, args, kwargs)

    @property
    def bottom(self) -> VariableTracker:
        """What it stands for in the end: another one may be held by the call around."""
        at: VariableTracker = self
        while type(at) is DeferredList:
            at = at.held.unwrap()
        return at

    def identity(self, tx: InstructionTranslatorBase) -> Any:
        """The one of all things that stand for the same list."""
        value = self.real(tx)
        known = tx.output.side_effects.id_to_variable.get(id(value))
        return value if value is not None and known is None else known or self.bottom

    def real(self, tx: InstructionTranslatorBase) -> list[Any] | None:
        """The list as it was when the frame began; None if the frame has made it."""
        at: Any = self.bottom
        if issubclass(type(at), LazyVariableTracker):
            return at.peek_value()
        return None if at.source is None else resolver(tx)(at.source)


def defer_list(tracker: VariableTracker) -> VariableTracker:
    """``tracker`` held back, if it is a list."""
    known: Any = tracker.unwrap()
    if type(known) is DeferredList and known.deferred is not None:
        return DeferredList(known)
    if type(known) is ListVariable or (type(known) is LazyVariableTracker and known.peek_type() is list):
        return DeferredList(tracker)
    return tracker


class OpenedTuples:
    """Tuples that hold held constants for a while.  They stay the objects that they are, which ``is`` may ask for."""

    def __init__(self) -> None:
        # id -> (tuple, what it holds otherwise)
        self._items: dict[int, tuple[TupleVariable, Any]] = {}

    def open(self, tracker: TupleVariable, made: list[DeferredConstant]) -> None:
        if id(tracker) not in self._items:
            self._items[id(tracker)] = tracker, tracker.items
            tracker.items = [hold(item, made, self) for item in tracker.items]

    def close(self) -> None:
        for tracker, items in self._items.values():
            tracker.items = items
        self._items.clear()


def hold(tracker: VariableTracker, made: list[DeferredConstant], opened: OpenedTuples) -> VariableTracker:
    """``tracker`` with the plain constants in it held back, which are added to ``made``."""
    if type(tracker) is TupleVariable and tracker.source is None:
        opened.open(tracker, made)
        return tracker
    if deferred_type(tracker) is None:
        return tracker
    made.append(DeferredConstant(tracker, constant_of(tracker), ArgumentValue(len(made))))
    return made[-1]


def constant_of(tracker: VariableTracker) -> Any:
    """The value of a constant that Dynamo knows already; None for anything else."""
    if type(tracker) is DeferredConstant:
        return tracker.deferred_value
    known = settled(tracker).unwrap()
    return known.value if type(known) is ConstantVariable else None


def deferred_type(tracker: VariableTracker) -> type | None:
    """The type of a constant that is held back when a call is made with it; None for anything else."""
    kind = type(constant_of(tracker))
    return kind if kind in DEFERRED_TYPES else None
