"""The deferred values of one call while it is traced, and which of them are specialized.

See Note [A constant is read when the program asks for its value] in deferred.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

from torch._dynamo.regions.keys import constant_key
from torch._dynamo.regions.trace.containers import (
    INDEXED,
    SubscriptPath,
    element_at,
    elements,
    held_at,
    items_of,
    lazy_tracker,
    untouched_at,
)
from torch._dynamo.regions.trace.deferred import (
    DEFERRED_TYPES,
    Deferred,
    DeferredConstant,
    DeferredList,
    constant_of,
    deferred_type,
)
from torch._dynamo.regions.trace.element_stores import Contents, ElementRead, ElementStore, is_position
from torch._dynamo.regions.trace.events import RECORDERS, Recorder
from torch._dynamo.regions.trace.expressions import Applied, BindingValue, Expression, SourceValue
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


# A deeper expression is specialized: a loop in the body would nest it without end.
MAX_DEPTH = 16
# Pure functions of constants whose result is a constant with a type that depends on the operands' types only.
_PURE: frozenset[Any] = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.mod, operator.floordiv, operator.truediv),
        *(operator.iadd, operator.isub, operator.imul, operator.imod, operator.ifloordiv),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
        *(operator.neg, operator.pos, operator.not_, operator.index, abs, str, str.format),
    }
)

# Types of the constants behind an argument that are deferred for a function of ``_PURE``.
_NUMBERS = (int, float)


def _unseen_global(tracker: Any) -> GlobalSource | None:
    """The source of a global that holds a plain constant and that the program has not read; None for anything else."""
    if type(tracker) is not LazyConstantVariable or tracker.is_realized() or tracker.peek_type() not in DEFERRED_TYPES:
        return None
    source = tracker.original_source()
    return source if type(source) is GlobalSource else None


def _of_ended(tracker: VariableTracker, deferred: DeferredValues) -> VariableTracker:
    """The deferred constant that an inner call, ended by now, deferred again as ``tracker``; else ``tracker``."""
    found = tracker
    while type(found) is DeferredConstant and found.deferred is None and not deferred.made(found):
        found = found.held
    return found if type(found) is DeferredConstant else tracker


class _DictGet(GetAttrVariable):
    """``get`` of a dict: it finds an element that is there by a deferred key, as an index does."""

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> VariableTracker:
        recorders = RECORDERS.of(tx.output)
        if recorders and len(args) in (1, 2) and not kwargs:
            deferred = recorders[-1].deferred
            if (found := deferred.apply(tx, operator.getitem, [self.obj, args[0]])) is not None:
                return found
            if deferred.finds_nothing(tx, self.obj, args[0]):
                return args[1] if len(args) == 2 else ConstantVariable.create(None)
        return super().call_function(tx, args, kwargs)


AnyDeferred = TypeVar("AnyDeferred", bound=Deferred)


def _is_same_index(one: Any, other: Any) -> bool:
    """Whether two indices, expressions or plain constants, are computed alike.  ``n * 1`` is not ``n * 1.0``."""
    if type(one) is not type(other):
        return False
    if not isinstance(one, Applied):
        return bool(one == other)
    alike = one.fn is other.fn and len(one.parts) == len(other.parts)
    return alike and all(map(_is_same_index, one.parts, other.parts))


class DeferredValues:
    """The deferred values of one call; see Note [A constant is read when the program asks for its value]."""

    def __init__(self, recorder: Recorder, contents: Contents) -> None:
        self.recorder = recorder
        self._contents = contents
        self._held: list[Deferred] = []
        self._ids: set[int] = set()
        # Specialized expressions, and the keys of their values. No dict, since ``f * 0.0`` equals ``f * -0.0``.
        self.specialized: list[tuple[Expression, Hashable]] = []
        self.specialized_ids: set[int] = set()
        # Whether the program has read a deferred list.
        self.saw_a_list = False
        # Sources of numbers that the call used as an index; only as an index, if the read sources do not include them.
        self.indices: set[Source] = set()
        self.paths: list[SubscriptPath] = []
        # Other elements of the indexed containers, which the call did not read.
        self.untouched: set[Source] = set()
        # binding of a global or cell -> the deferred constant that stands for its value
        self.bound: dict[BindingValue, DeferredConstant] = {}

    def _is_only(self, tx: InstructionTranslatorBase) -> bool:
        """Whether this call is the only one of the frame that is being traced."""
        recorders = RECORDERS.of(tx.output)
        return len(recorders) == 1 and recorders[0].deferred is self

    def add(self, held: AnyDeferred) -> AnyDeferred:
        held.deferred = self
        self._held.append(held)
        self._ids.add(id(held))
        return held

    def made(self, tracker: VariableTracker) -> bool:
        return id(tracker) in self._ids

    def specialize(self, held: Deferred) -> None:
        held.deferred = None
        if isinstance(held, DeferredConstant):
            self.specialized_ids.add(id(held))
            self.specialized.append((held.expression, constant_key(held.deferred_value)))
        else:
            self.saw_a_list = True

    def end(self) -> None:
        """Lets every deferred value become what it stands for."""
        for held in self._held:
            held.deferred = None
        for path in self.paths:
            trackers: list[Any] = [tracker for _, tracker in elements(path.holder)]
            self.untouched |= {t.original_source() for t in trackers if not t.is_realized() and t.source is not None}
        self.untouched.difference_update(path.element for path in self.paths)

    def expression_of(self, tracker: VariableTracker) -> Expression | None:
        """The expression of a constant that stayed deferred to the end; None for anything else."""
        tracker = _of_ended(tracker, self)
        if type(tracker) is DeferredConstant and self.made(tracker) and id(tracker) not in self.specialized_ids:
            return tracker.expression
        return None

    def load_bound(self, tracker: VariableTracker, name: str, value: VariableTracker) -> VariableTracker:
        """``value``, to which the frame bound a global or cell before the call; deferred if it is a plain constant."""
        if deferred_type(value) is None:
            return value
        return self._bound(BindingValue(tracker if isinstance(tracker, CellVariable) else tracker.source, name), value)  # type: ignore[arg-type]

    def _bound(self, where: BindingValue, value: VariableTracker) -> DeferredConstant:
        if where not in self.bound:
            self.bound[where] = self.add(DeferredConstant(value, constant_of(value), where))
        return self.bound[where]

    def _globals(self, tx: InstructionTranslatorBase, args: list[VariableTracker]) -> list[VariableTracker]:
        """``args`` with those globals deferred that the program has neither bound nor read, if all are constants.

        These globals are guarded as if read: flat tracing reads them, whether or not the result depends on them.
        """
        unseen = [_unseen_global(a) for a in args]
        if not any(unseen) or not self._is_only(tx):
            return args
        if any(source is None and deferred_type(a) is None for a, source in zip(args, unseen, strict=True)):
            return args
        with self.recorder.unrecorded():
            looked = [a if source is None else a.realize() for a, source in zip(args, unseen, strict=True)]
        if not all(type(a) is ConstantVariable for a, s in zip(looked, unseen, strict=True) if s is not None):
            self.recorder.sources.update(s for s in unseen if s is not None)  # a number that Dynamo treats as symbolic
            return looked
        pairs = zip(looked, unseen, strict=True)
        return [
            a if source is None else self._bound(BindingValue(source, source.global_name), a) for a, source in pairs
        ]

    def apply(self, tx: InstructionTranslatorBase, fn: Any, args: list[VariableTracker]) -> VariableTracker | None:
        """The deferred result of a builtin function; None if Dynamo has to compute it as usual."""
        if fn is getattr:
            return self._method(*args)
        if fn is not operator.getitem and fn not in _PURE:
            return None
        args = [_of_ended(a, self) for a in args]
        if fn is not operator.getitem:
            args = self._globals(tx, self._numbers(tx, args))
        if any(type(a) is DeferredConstant and a.deferred not in (None, self) for a in args):
            return None  # deferred by a surrounding call: read as usual
        if fn is operator.getitem:
            return self._index(tx, *args) if len(args) == 2 else None
        own = [type(a) is DeferredConstant and a.deferred is self for a in args]
        if not any(own) or any(deferred_type(a) is None for a in args):
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
            return None  # Dynamo raises it as usual
        if type(value) not in DEFERRED_TYPES:
            return None
        # To a surrounding call, the result is an expression of its own deferred constants.
        outer = next((b.deferred for b in below if type(b) is DeferredConstant and b.deferred is not None), None)
        made = outer.apply(tx, fn, below) if outer is not None else None
        return self.add(DeferredConstant(made or ConstantVariable.create(value), value, expression))

    def _method(self, owner: VariableTracker, name: VariableTracker, *default: VariableTracker) -> Any:
        """``append`` of a deferred list, or ``get`` of a dict; None for anything else, or a name that is deferred."""
        if type(name) is not ConstantVariable or default:
            return None
        if name.value == "append" and type(owner) is DeferredList and owner.deferred is self:
            return GetAttrVariable(owner, "append")
        if name.value == "get" and type(found := owner.realize()) is ConstDictVariable:
            return _DictGet(found, "get")
        return None

    def _numbers(self, tx: InstructionTranslatorBase, args: list[VariableTracker]) -> list[VariableTracker]:
        """``args`` with those numbers deferred that the program has not read yet, if all are constants."""
        unseen: list[Any] = [a if type(a) is LazyConstantVariable and not a.is_realized() else None for a in args]
        unfit = (a is not None and (a.peek_type() not in _NUMBERS or _unseen_global(a)) for a in unseen)
        others = (a for a, mine in zip(args, unseen, strict=True) if mine is None)
        if not any(unseen) or any(unfit) or any(deferred_type(a) is None for a in others) or not self._is_only(tx):
            return args
        return [
            self.add(DeferredConstant(constant, constant.value, SourceValue(a.original_source())))
            if mine is not None and (constant := self._constant(tx, mine)) is not None
            else a
            for a, mine in zip(args, unseen, strict=True)
        ]

    def _index(
        self, tx: InstructionTranslatorBase, container: VariableTracker, key: VariableTracker
    ) -> VariableTracker | None:
        if self._contents.is_on and (known := self._known_element(tx, container.realize(), key)) is not None:
            return known
        expression = self._index_expression(tx, key)
        if expression is None:
            return None
        found = container.realize()
        if self._contents.last_store(found) is not None:
            return None
        lazy: Any = key
        value = lazy.deferred_value if type(key) is DeferredConstant else lazy.original_value()
        element = element_at(tx, found, value, self._contents.is_by_element(found))
        if type(found) in (ListVariable, ConstDictVariable):
            INDEXED.of(tx.output)[id(found)] = found
        if element is None or (isinstance(expression, SourceValue) and self._constant(tx, key) is None):
            return None
        value, source = element.original_value(), element.original_source()  # type: ignore[attr-defined]
        if tx.output.variable_tracker_cache.get(source) is element:
            del tx.output.variable_tracker_cache[source]
        assert found.source is not None
        self.paths.append(SubscriptPath(found.source, found, expression, source, element))
        return lazy_tracker(type(element), value, source)

    def _index_expression(self, tx: InstructionTranslatorBase, key: VariableTracker) -> Expression | None:
        if not self._is_only(tx):
            return None
        if type(key) is DeferredConstant:
            return key.expression if key.deferred is self else None
        if type(key) is LazyConstantVariable and not key.is_realized():
            return SourceValue(key.original_source()) if key.peek_type() in (int, str) else None
        return None

    def _known_element(self, tx: InstructionTranslatorBase, container: Any, key: Any) -> VariableTracker | None:
        """What the call has stored last, if at ``key``; or the untouched element at a plain constant."""
        if (last := self._contents.last_store(container)) is not None:
            index = self._element_index(tx, key) if self._contents.is_by_element(container) else None
            return last.value if index is not None and _is_same_index(index, last.index) else None
        if type(key) is not ConstantVariable or key.source is not None or not self._contents.is_by_element(container):
            return None
        found = untouched_at(container, key.value)
        if found is not None:
            self._contents.reads.append(ElementRead(container, key.value, is_there=True))
            if found.is_realized():
                self.recorder.loaded.append(found)  # no source is looked up again
        return found

    def finds_nothing(self, tx: InstructionTranslatorBase, container: Any, key: Any) -> bool:
        """Whether ``key`` is not in a dict that the frame has changed; if so, notes that the call has read this."""
        if not self._contents.is_by_element(container) or not tx.output.side_effects.is_modified(container):
            return False
        index = self._element_index(tx, key) if self._contents.last_store(container) is None else None
        if index is None or (constant := self._element_key(tx, key)) is None:
            return False
        if type(constant.value) not in (int, str) or held_at(container, constant.value) is not None:
            return False
        self._contents.reads.append(ElementRead(container, index, is_there=False))
        return True

    def store(
        self, tx: InstructionTranslatorBase, container: Any, key: Any, value: Any, store: Callable[[Any], Any]
    ) -> VariableTracker:
        """Stores ``value`` in ``container`` by ``store(key)``, and notes whether a later call can do the same."""
        contents, found = self._contents, container.realize()
        index = self._element_index(tx, key)
        constant = self._element_key(tx, key) if index is not None and contents.can_store(found) else None
        made: VariableTracker
        if constant is None or not is_position(items_of(found), constant.value):
            made = store(key)
            return made
        with contents.unnoted(found):
            made = store(constant)
        contents.stores.append(ElementStore(found, index, value))
        return made

    def _element_index(self, tx: InstructionTranslatorBase, key: Any) -> Any:
        """The index that ``key`` is, as an expression or a plain constant; None for anything else."""
        if type(key) is ConstantVariable and key.source is None and type(key.value) in (int, str):
            return key.value if self._is_only(tx) else None
        return self._index_expression(tx, key)

    def _element_key(self, tx: InstructionTranslatorBase, key: Any) -> ConstantVariable | None:
        """The constant that ``key`` is to Dynamo, guarded; None if it is symbolic."""
        if type(key) is DeferredConstant:
            return ConstantVariable.create(key.deferred_value)
        return key if type(key) is ConstantVariable else self._constant(tx, key)

    def _constant(self, tx: InstructionTranslatorBase, key: Any) -> ConstantVariable | None:
        """The constant that ``key`` is to Dynamo, or None if it is symbolic.  Guards it as realizing does."""
        source = key.original_source()
        with self.recorder.unrecorded():
            looked = LazyConstantVariable.create(key.original_value(), source).realize()
        self.indices.add(source)
        return looked if type(looked) is ConstantVariable else None
