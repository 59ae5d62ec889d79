"""Constants that a region's call is made with, held back until somebody looks at them.

Note [A constant is read when somebody asks for its value]
A loop hands its index to each layer, a counter counts the calls, a layer's number finds its part
of a cache.  If the fingerprint held such values, no two calls would be alike.  Most bodies never
look: they pass the number on, store it, add one to it, or index a container with it.  Dynamo has
a tracker for what nobody has looked at yet, LazyVariableTracker, and realizes it when somebody
does.  So while a region is traced, its plain constants are lazy ones (``HeldConstant``):

- an operator on held constants makes a held one, with the ``Expression`` that it was made by;
- whoever realizes one *pins* its expression: the entry holds only where it has the same value.  A
  comparison is an expression like any other, so ``if i < 3`` pins a truth, not a number;
- what is stored or returned unpinned is an expression in the recipe, computed anew for each call;
- a list that is only appended to is held back too (``HeldList``): each call appends its own;
- an index into a list or dict makes a *path*: the element found becomes one more argument of
  the call, which stands at another index in another call.  That needs to be the only way in which
  the call comes by the element.  So the path leads to a tracker of its own, and what the container
  holds stays lazy: if that is realized, somebody came another way.  Where it was realized before,
  the next call is traced with lazy trackers in its place (``Watch``).

A type is never held back: it is in the fingerprint.  When the call ends, held constants become
the constants that they stand for.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from torch._dynamo.region_identity import constant_key
from torch._dynamo.region_transport import Resolver, resolver
from torch._dynamo.source import ConstantSource, DictGetItemSource, GetItemSource, GlobalSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.hashable import HashableTracker
from torch._dynamo.variables.lazy import LazyCache, LazyConstantVariable, LazyVariableTracker
from torch._dynamo.variables.lists import ListVariable, TupleVariable
from torch._dynamo.variables.misc import CellVariable, GetAttrVariable


if TYPE_CHECKING:
    from torch._dynamo.region_reads import Observer
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source


# Kinds of constants that are held. None is no number, and asked for by every ``is None``.
HELD_TYPES = (int, float, bool, str)
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


class Given(NamedTuple):
    """A constant among the arguments, by its number in their order."""

    number: int


class Behind(NamedTuple):
    """The constant at a source."""

    source: Source


class Bound(NamedTuple):
    """The constant that a global or a cell is bound to: a cell by the frame, a global by the frame or before it."""

    # Of a global, its source: Dynamo makes a tracker each time that it is bound.
    where: Source | CellVariable
    name: str

    def load(self, tx: InstructionTranslatorBase) -> VariableTracker:
        """What it is bound to now."""
        side_effects = tx.output.side_effects
        if isinstance(self.where, CellVariable):
            return side_effects.load_attr(self.where, self.name)
        bound = tx.output.root_tx.symbolic_globals
        if self.name not in bound:
            return VariableTracker.build(tx, resolver(tx)(self.where), self.where)
        return side_effects.load_attr(side_effects[bound[self.name]], self.name)


class Applied(NamedTuple):
    """A pure function of parts: expressions and plain constants."""

    fn: Callable[..., Any]
    parts: tuple[Any, ...]

    @property
    def depth(self) -> int:
        return 1 + max((p.depth for p in self.parts if isinstance(p, Applied)), default=0)


Expression = Given | Behind | Bound | Applied


def value_of(expression: Any, leaf: Callable[[Any], Any]) -> Any:
    """The value of ``expression``, where ``leaf`` gives that of a Given, Behind or Bound.

    Raises what its functions raise.
    """
    if isinstance(expression, Applied):
        return expression.fn(*(value_of(part, leaf) for part in expression.parts))
    return leaf(expression) if isinstance(expression, (Given, Behind, Bound)) else expression


class Held(LazyVariableTracker):
    """Something that is pinned when it is realized while its call is traced."""

    _nonvar_fields: ClassVar[set[str]] = {"holding", "held", *LazyVariableTracker._nonvar_fields}

    def __init__(self, held: VariableTracker, value: Any) -> None:
        # The cache is there for stock's methods; it is never asked to build anything.
        super().__init__(LazyCache(value, "held"), source=held.source)
        # What it stands for; it may be held by the call around this one.
        self.held = held
        # Set while the call is traced.
        self.holding: Holding | None = None

    def realize(self) -> VariableTracker:
        if self.holding is not None:
            self.holding.pin(self)
        return self.held.realize()

    def is_realized(self) -> bool:
        return self.holding is None and self.held.is_realized()

    def unwrap(self) -> VariableTracker:
        return self if self.holding is not None else self.held.unwrap()

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


class HeldConstant(Held):
    """A constant that nobody has looked at yet."""

    _nonvar_fields: ClassVar[set[str]] = {"expression", "held_value", *Held._nonvar_fields}

    def __init__(self, held: VariableTracker, value: Any, expression: Expression) -> None:
        super().__init__(held, value)
        self.held_value = value
        self.expression = expression

    def peek_type(self) -> type[Any]:
        return type(self.held_value)

    def python_type(self) -> type:
        return type(self.held_value)

    def lazy_isinstance(self, cls: type) -> bool:
        return issubclass(ConstantVariable, cls)

    def peek_value(self) -> Any:
        self.realize()
        return self.held_value

    original_value = peek_value


class HeldList(Held):
    """A list that nobody has looked at yet.  Appending to it is not looking."""

    _nonvar_fields: ClassVar[set[str]] = {"appended", *Held._nonvar_fields}

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
        if self.holding is None or name != "append" or len(args) != 1 or kwargs:
            return self.realize().call_method(tx, name, args, kwargs)
        self.appended.append(args[0])
        with self.holding.observer.looks_aside():
            return self.held.call_method(tx, name, args, kwargs)

    @property
    def bottom(self) -> VariableTracker:
        """What it stands for in the end: another one may be held by the call around."""
        at: VariableTracker = self
        while type(at) is HeldList:
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


def hold_list(tracker: VariableTracker) -> VariableTracker:
    """``tracker`` held back, if it is a list."""
    known: Any = tracker.unwrap()
    if type(known) is HeldList and known.holding is not None:
        return HeldList(known)
    if type(known) is ListVariable or (type(known) is LazyVariableTracker and known.peek_type() is list):
        return HeldList(tracker)
    return tracker


class Opened:
    """Tuples that hold held constants for a while.  They stay the objects that they are, which ``is`` may ask for."""

    def __init__(self) -> None:
        # id -> (tuple, what it holds otherwise)
        self._items: dict[int, tuple[TupleVariable, Any]] = {}

    def open(self, tracker: TupleVariable, made: list[HeldConstant]) -> None:
        if id(tracker) not in self._items:
            self._items[id(tracker)] = tracker, tracker.items
            tracker.items = [hold(item, made, self) for item in tracker.items]

    def close(self) -> None:
        for tracker, items in self._items.values():
            tracker.items = items
        self._items.clear()


def hold(tracker: VariableTracker, made: list[HeldConstant], opened: Opened) -> VariableTracker:
    """``tracker`` with the plain constants in it held back, which are added to ``made``."""
    if type(tracker) is TupleVariable and tracker.source is None:
        opened.open(tracker, made)
        return tracker
    if held_type(tracker) is None:
        return tracker
    made.append(HeldConstant(tracker, _constant(tracker), Given(len(made))))
    return made[-1]


def _of_ended(tracker: VariableTracker, holding: Holding) -> VariableTracker:
    """What ``tracker`` stands for to the call of ``holding``, if it was held by a call inside that has ended."""
    found = tracker
    while type(found) is HeldConstant and found.holding is None and not holding.made(found):
        found = found.held
    return found if type(found) is HeldConstant else tracker


def _constant(tracker: VariableTracker) -> Any:
    """The value of a constant that Dynamo knows already; None for anything else."""
    if type(tracker) is HeldConstant:
        return tracker.held_value
    known = tracker.unwrap()
    return known.value if type(known) is ConstantVariable else None


def held_type(tracker: VariableTracker) -> type | None:
    """The type of a constant that is held back when a call is made with it; None for anything else."""
    kind = type(_constant(tracker))
    return kind if kind in HELD_TYPES else None


def _unseen_global(tracker: Any) -> GlobalSource | None:
    """The source of a plain constant of a global that nobody has looked at."""
    if type(tracker) is not LazyConstantVariable or tracker.is_realized() or tracker.peek_type() not in HELD_TYPES:
        return None
    source = tracker.original_source()
    return source if type(source) is GlobalSource else None


@dataclasses.dataclass
class Path:
    """An element of a container that was found by a held index."""

    container: Source
    holder: VariableTracker
    index: Expression
    element: Source
    # What the container holds there. Nobody looks at it in this call but by the path: else it would not be known
    # which of the things that were read at ``element`` stand elsewhere in another call.
    seen: VariableTracker


AnyHeld = TypeVar("AnyHeld", bound=Held)


class Holding:
    """The held constants of one call while it is traced, and what became of them."""

    def __init__(self, observer: Observer) -> None:
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
            trackers: list[Any] = [tracker for _, tracker in _places(path.holder)]
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
            self.bound[where] = self.add(HeldConstant(value, _constant(value), where))
        return self.bound[where]

    def _globals(self, tx: InstructionTranslatorBase, args: list[VariableTracker]) -> list[VariableTracker]:
        """``args``, if they are constants, with those held back that are globals nobody has bound or looked at.

        They are guarded as if somebody looked: the program does, though nothing may come of it here.
        """
        unseen = [_unseen_global(a) for a in args]
        constants = all(s is not None or held_type(a) is not None for a, s in zip(args, unseen, strict=True))
        if not constants or not any(unseen) or not tx.output.region_tracker.calls.is_only(self):
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
        if fn is getattr and type(args[0]) is HeldList and args[0].holding is self and _constant(args[1]) == "append":
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
        parts = [a.expression if mine else _constant(a) for a, mine in zip(held, own, strict=True)]
        expression = Applied(fn, tuple(parts))
        if expression.depth > MAX_DEPTH:
            return None
        below = [a.held if mine else a for a, mine in zip(held, own, strict=True)]
        try:
            value = fn(*map(_constant, args))
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
        element = _element(tx, found, lazy.held_value if type(key) is HeldConstant else lazy.original_value())
        if element is None and type(found) in (ListVariable, ConstDictVariable):
            tx.output.region_tracker.calls.indexed[id(found)] = found
        if element is None or (isinstance(expression, Behind) and not self._looks_constant(tx, key)):
            return None
        value, source = element.original_value(), element.original_source()  # type: ignore[attr-defined]
        if tx.output.variable_tracker_cache.get(source) is element:
            del tx.output.variable_tracker_cache[source]
        assert found.source is not None
        self.paths.append(Path(found.source, found, expression, source, element))
        return _lazy_tracker(type(element), value, source)

    def _index_expression(self, tx: InstructionTranslatorBase, key: VariableTracker) -> Expression | None:
        if not tx.output.region_tracker.calls.is_only(self):
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


def _element(tx: InstructionTranslatorBase, container: Any, key: Any) -> VariableTracker | None:
    """What an unchanged container with a source holds at ``key``, if nobody has looked at that yet."""
    if container.source is None or tx.output.side_effects.is_modified(container):
        return None
    found = None
    if type(container) is ListVariable and type(key) is int:
        found = container.items[key] if 0 <= key < len(container.items) else None
    elif type(container) is ConstDictVariable and type(key) in (int, str):
        found = container.items.get(HashableTracker(ConstantVariable.create(key)))
    if found is None or type(found) not in (LazyVariableTracker, LazyConstantVariable) or found.is_realized():
        return None
    source = found.original_source()
    known = tx.output.side_effects.id_to_variable.get(id(found.original_value()))
    if known is not None and (known.source is None or known.source.name != source.name):
        return None  # known by another way
    plain = type(source) in (GetItemSource, DictGetItemSource) and type(source.index) in (int, str)
    return found if plain and source.base == container.source else None


class Watch:
    """Lazy trackers in the place of what containers hold, while a call is traced."""

    def __init__(self, tx: InstructionTranslatorBase, containers: Iterable[Any]) -> None:
        # container -> (its trackers, the lazy ones in their place)
        self._kept: list[tuple[Any, dict[Any, VariableTracker], dict[Any, VariableTracker]]] = []
        resolve = resolver(tx)
        for container in containers:
            if tx.output.side_effects.is_modified(container):
                continue
            kept = dict(_places(container))
            lazy = {place: _lazy(found, container.source, resolve) for place, found in kept.items()}
            _put(container, lazy)
            self._kept.append((container, kept, lazy))

    def end(self) -> None:
        """Puts back what was there."""
        for container, kept, lazy in self._kept:
            now = dict(_places(container))
            _put(container, {place: kept[place] for place in now if place in lazy and now[place] is lazy[place]})


def _places(container: Any) -> Iterable[tuple[Any, VariableTracker]]:
    return enumerate(container.items) if type(container) is ListVariable else container.items.items()


def _put(container: Any, trackers: dict[Any, VariableTracker]) -> None:
    for place, tracker in trackers.items():
        container.items[place] = tracker


def _lazy(found: VariableTracker, base: Any, resolve: Resolver) -> VariableTracker:
    """A lazy tracker of the same thing; ``found`` itself where it is no plain element of ``base``."""
    source: Any = found.source
    if not found.is_realized() or type(source) not in (GetItemSource, DictGetItemSource) or source.base != base:
        return found
    value = resolve(source)
    return _lazy_tracker(LazyConstantVariable if type(value) in HELD_TYPES else LazyVariableTracker, value, source)


def _lazy_tracker(kind: Any, value: Any, source: Source) -> VariableTracker:
    return kind(LazyCache(value, source), source=source)
