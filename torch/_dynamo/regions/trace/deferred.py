"""Constants among the arguments of a region call, deferred until the program reads them.

Note [A constant is read when the program asks for its value]
A loop passes its index to each layer, a counter counts the calls, and a layer's number finds the layer's part of a
cache.  If the fingerprint held such values, no two calls would be alike.  But most bodies never read the value: they
pass the number on, store it, add one to it, or index a container with it.  Dynamo tracks what the program has not read
yet by a LazyVariableTracker, and realizes the tracker at the first read.  So while a region is traced, its plain
constants are lazy (``DeferredConstant``):

- An operator on deferred constants makes a deferred constant with an ``Expression`` that says how it was computed.
- Realizing a deferred constant *specializes* its expression: the entry serves only calls in which the expression has
  the same value.  A comparison is an expression like any other, so ``if i < 3`` specializes a truth value, not ``i``.
- A deferred constant that is stored or returned is an expression in the recipe, which each call computes anew.
- A list that the call only appends to is deferred too (``DeferredList``): each call appends its own values.
- An index into a list or dict, or ``get`` of a dict, makes a *path* (``SubscriptPath``): the element becomes one more
  argument of the call, and stands at another index in another call.  The call may reach the element by this path only.
  To check that, the path leads to a tracker of its own, and the container's tracker of the element stays lazy: if that
  is realized, the call took another path.  If it was realized before the call, the next call is traced with lazy
  trackers in the container (``Watch``).
- A number behind an argument is deferred too, for an index and for a function of constants: layers whose rates of drop
  path differ are alike if they only ask whether theirs is zero.  It is guarded as if read: flat tracing reads it.

Types are not deferred: the fingerprint holds them.  When the call ends, each deferred constant becomes the constant
that it stands for.
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


# Types of deferred constants. None is not among them, because every ``is None`` would read it.
DEFERRED_TYPES = (int, float, bool, str)


class DeferredOwner(Protocol):
    """Owns the deferred values of one call; see deferred_values.py."""

    recorder: Recorder

    def specialize(self, held: Any) -> None:
        """Notes that the program has read ``held``."""


class Deferred(LazyVariableTracker):
    """A value that is specialized if it is realized while its call is traced."""

    _nonvar_fields: ClassVar[set[str]] = {"deferred", "held", *LazyVariableTracker._nonvar_fields}

    def __init__(self, held: VariableTracker, value: Any) -> None:
        # Stock's methods need a cache, but never build anything from this one.
        super().__init__(LazyCache(value, "held"), source=held.source)
        # The tracker that this one stands for; the surrounding call may have deferred it as well.
        self.held = held
        # The owner while the call is traced; None before and after.
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
        # Callers go on to read the source's kind, so a number that the frame has computed needs a source as well.
        return self.realize().source or ConstantSource("held")

    def is_hashable_lazy(self) -> bool:
        return False  # hashing reads the value

    def clone(self, **kwargs: Any) -> VariableTracker:
        return self.realize().clone(**kwargs)

    def set_name_hint(self, name: str) -> None:
        pass  # only tensors take names

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
    """A constant that the program has not read yet."""

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
    """A list that the program has not read yet.  Appending to it is no read."""

    _nonvar_fields: ClassVar[set[str]] = {"appended", *Deferred._nonvar_fields}

    def __init__(self, held: VariableTracker) -> None:
        super().__init__(held, None)
        self.appended: list[VariableTracker] = []

    def peek_type(self) -> type[Any]:
        return list

    def peek_value(self) -> Any:
        self.realize()
        return []  # shows the type only: the elements are trackers

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
        """The list's own tracker, below the deferred lists of all surrounding calls."""
        at: VariableTracker = self
        while type(at) is DeferredList:
            at = at.held.unwrap()
        return at

    def identity(self, tx: InstructionTranslatorBase) -> Any:
        """One object for all trackers that stand for the same list."""
        value = self.real(tx)
        known = tx.output.side_effects.id_to_variable.get(id(value))
        return value if value is not None and known is None else known or self.bottom

    def real(self, tx: InstructionTranslatorBase) -> list[Any] | None:
        """The list as it was when the frame began; None if the frame made it."""
        at: Any = self.bottom
        if issubclass(type(at), LazyVariableTracker):
            return at.peek_value()
        return None if at.source is None else resolver(tx)(at.source)


def defer_list(tracker: VariableTracker) -> VariableTracker:
    """``tracker``, deferred if it is a list."""
    known: Any = tracker.unwrap()
    if type(known) is DeferredList and known.deferred is not None:
        return DeferredList(known)
    if type(known) is ListVariable or (type(known) is LazyVariableTracker and known.peek_type() is list):
        return DeferredList(tracker)
    return tracker


class OpenedTuples:
    """Tuples whose elements are deferred until ``close``, in place: ``is`` may compare the tuples."""

    def __init__(self) -> None:
        # id -> (tuple, its original elements)
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
    """``tracker`` with its plain constants deferred, which are added to ``made``."""
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
    """The type of a constant that is deferred as an argument; None for anything else."""
    kind = type(constant_of(tracker))
    return kind if kind in DEFERRED_TYPES else None
