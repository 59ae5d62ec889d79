"""Flattens the arguments of a region call into a key of their structure and a list of leaves.

Two calls with equal ``Arguments.key`` agree in all that their arguments alone can tell: structure, constants by type
and value, metadata of tensors, symbolic expressions, functions by identity, which arguments are the same object, and
which tensors share a storage.  The key leaves out what is behind an object with a source (a module, a user's object, a
constant or tensor that is still lazy): the leaf holds the source, and the read set the rest.

Nothing is realized here, so that no guard is made that flat tracing would not make.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from torch._dynamo import variables
from torch._dynamo.regions.keys import (
    Same,
    Unkeyable,
    constant_key,
    function_key,
    hidden_key,
    symbol_key,
    tensor_key,
    value_storages,
)
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.release import DICTS, bound_to, settled
from torch._dynamo.regions.trace.deferred import Deferred, DeferredConstant, DeferredList
from torch._dynamo.regions.trace.element_stores import is_watched
from torch._dynamo.regions.trace.own_symbols import symbols_so_far
from torch._dynamo.regions.trace.state import has_grad_fn, source_of_value
from torch._dynamo.regions.trace.stored_weights import STORED, stored_weights
from torch._dynamo.regions.trace.substitution import SourceSubstitution, bare, resolver, root_of
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.functions import (
    FunctoolsPartialVariable,
    NestedUserFunctionVariable,
    UserFunctionVariable,
    UserMethodVariable,
)
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import ListVariable, SizeVariable, SliceVariable, TupleVariable
from torch._dynamo.variables.misc import CellVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
from torch._guards import ChainedSource


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker
    from torch._guards import Source


@dataclasses.dataclass
class Leaf:
    """A tracker among the arguments of a call, at any depth."""

    tracker: VariableTracker
    # The sources of its value when the frame begins: first the one that Dynamo knows the value by, then the one that
    # the call reached it by, if different. Empty if the frame computed the value. In the form of ``bare``, because one
    # module may have been realized and the next one not.
    sources: tuple[Source, ...]


class Arguments:
    """The callee and the arguments of one call."""

    def __init__(
        self,
        tx: InstructionTranslatorBase,
        fn: VariableTracker,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
        held: list[DeferredConstant],
    ) -> None:
        """``held``: the deferred constants among the arguments.

        Raises CannotReuse if an argument is of a kind that is not compared.
        """
        self._tx = tx
        # How many symbols and guards the shape environment had when the call began.
        self.symbols_before = symbols_so_far(tx)
        # All trackers, containers included, in the order of the walk, which is the same for equal keys.
        self.leaves: list[Leaf] = []
        # The key leaves these out; see Note [A constant is read when the program asks for its value].
        self.held = held
        self.lists: list[DeferredList] = []
        # id of a tracker, of a proxy's node or of an example value -> its number in the order of first occurrence.
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        # Entries are limited for each of these: the code of a Python function, or the class of a callable.
        function = getattr(fn, "fn", None)
        code = function.__code__ if type(function) is types.FunctionType else None
        self.function: Any = code or function or Same(type(getattr(fn, "value", fn)))
        structure = [self._callee(fn), *map(self._walk, args)]
        # In the order of the call, which is the order of a **kwargs dict inside.
        structure += [(name, self._walk(value)) for name, value in kwargs.items()]
        stored = stored_weights(tx, self.leaves)
        # ids of the dicts whose changes the key tells.
        self.stored_in = {id(each.holder) for each in stored}
        weights = tuple((w.leaf, w.way, w.names, tuple(map(self._weight, w.values))) for w in stored)
        self.key: Hashable = (STORED, weights, tuple(structure)) if weights else tuple(structure)

    def _weight(self, tracker: VariableTracker | None) -> Hashable:
        return None if tracker is None else self._walk(tracker)

    def _number(self, identity: Any) -> int:
        return self._numbers.setdefault(id(identity), len(self._numbers))

    def _walk(self, tracker: VariableTracker) -> Hashable:
        if type(tracker) is TensorVariable:  # most are
            source = tracker.source or source_of_value(tracker.proxy)
            self.leaves.append(Leaf(tracker, () if source is None else (bare(source),)))
            return self._tensor(tracker)
        if issubclass(type(tracker), Deferred):
            if type(tracker) is DeferredList and tracker.deferred is None:
                return self._defer_list(tracker)
            if type(tracker) is DeferredConstant and any(tracker is held for held in self.held):
                self.leaves.append(Leaf(tracker, ()))
                return "held", type(tracker.deferred_value)
            tracker = tracker.realize()  # deferred by a surrounding call
        if issubclass(type(tracker), LazyVariableTracker):
            lazy: Any = settled(tracker)
            if not lazy.is_realized():
                return self._sourced(lazy.peek_value(), lazy.original_source(), lazy)
            tracker = lazy.unwrap()
        self.leaves.append(Leaf(tracker, () if tracker.source is None else (bare(tracker.source),)))
        return self._key_of(tracker)

    def _callee(self, fn: VariableTracker) -> Hashable:
        """Key of the callee.  A body cannot tell apart functions of the same code, globals, defaults and cells."""
        key = self._walk(fn)
        called: Any = fn.unwrap()
        return ("function", function_key(called.fn)) if key == ("function", getattr(called, "fn", None)) else key

    def _defer_list(self, held: DeferredList) -> Hashable:
        identity = held.identity(self._tx)
        if id(identity) in self._numbers:
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_ARGUMENT, "a list that is there twice")
        self._number(identity)
        self.lists.append(held)
        self.leaves.append(Leaf(held, ()))
        return "held list"

    def _key_of(self, tracker: Any) -> Hashable:
        kind = type(tracker)
        if kind is TensorVariable:
            return self._tensor(tracker)
        if kind is SymNodeVariable:
            return ("symbol", self._keyed(symbol_key, tracker.sym_num), self._number(tracker.proxy.node))
        sourced = kind in (TupleVariable, ListVariable, *DICTS) and tracker.source is not None
        if sourced and (is_watched(self._tx, tracker) or not self._tx.output.side_effects.is_modified(tracker)):
            # Like an object: its elements are behind its source. What the frame has stored is compared by element.
            return self._seen_behind(resolver(self._tx)(tracker.source))
        if kind is TupleVariable and id(tracker) in self._numbers:
            return "again", self._number(tracker)
        if kind is TupleVariable:
            return (kind, self._number(tracker), tracker.python_type(), *map(self._walk, tracker.items))
        if kind in (SizeVariable, SliceVariable):
            return (kind, tracker.python_type(), *map(self._walk, tracker.items))
        if kind is ListVariable:
            # By identity too, because a body may write to one list and read another.
            return self._once(tracker, lambda: (kind, *map(self._walk, tracker.items)))
        if kind is ConstDictVariable:
            items = tracker.items.items()
            return self._once(tracker, lambda: (kind, *((self._walk(k.vt), self._walk(v)) for k, v in items)))
        if (found := self._function(tracker)) is not None:
            return found
        if isinstance(tracker, variables.UserDefinedObjectVariable) and tracker.source is not None:
            return self._object(tracker)
        if tracker.is_python_constant():
            return self._keyed(constant_key, tracker.as_python_constant())
        raise CannotReuse(ReuseMissReason.UNSUPPORTED_ARGUMENT, kind.__name__)

    def _once(self, tracker: VariableTracker, key: Any) -> Hashable:
        seen = id(tracker) in self._numbers
        if seen and self.lists:
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_ARGUMENT, "something that is there twice")
        number = self._number(tracker)
        return ("again", number) if seen else (number, key())

    def _tensor(self, tracker: Any) -> Hashable:
        value = tracker.proxy.node.meta.get("example_value")
        if value is None:
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_ARGUMENT, f"{tracker.proxy.node} has no value")
        side_effects = self._tx.output.side_effects
        if side_effects.store_attr_mutations.get(tracker):
            raise CannotReuse(
                ReuseMissReason.READS_PENDING_STATE, f"{tracker.proxy.node} has attributes of the frame's"
            )
        storages = [self._storages.setdefault(s, len(self._storages)) for s in value_storages(value)]
        return (
            tracker.class_type,  # a Parameter is no plain tensor to isinstance
            # The program's ``is`` asks for the value: ``x.contiguous()`` may be ``x``.
            (self._number(tracker.proxy.node), self._number(value)),
            tuple(storages),  # views of one storage
            self._keyed(tensor_key, value),
            hidden_key(value),
            # A tensor that does not require grad is always a leaf.
            has_grad_fn(value) if value.requires_grad else None,
        )

    def _function(self, tracker: Any) -> Hashable:
        kind = type(tracker)
        if kind is UserFunctionVariable:
            # By identity, because two functions of one code object may differ in closures and defaults.
            return ("function", tracker.fn)
        if kind is UserMethodVariable:
            return ("method", tracker.fn, self._walk(bound_to(tracker)))
        if kind is FunctoolsPartialVariable:
            named = ((name, self._walk(value)) for name, value in tracker.keywords.items())
            return ("partial", self._walk(tracker.func), *map(self._walk, tracker.args), *named)
        if kind is NestedUserFunctionVariable:
            parts = (tracker.defaults, tracker.kwdefaults, tracker.closure)
            return self._once(
                tracker, lambda: (tracker.get_code(), *(None if p is None else self._walk(p) for p in parts))
            )
        if kind is CellVariable:
            contents = self._tx.output.side_effects.load_cell
            return self._once(tracker, lambda: ("cell", self._walk(contents(tracker))))
        return None

    def _object(self, tracker: Any) -> Hashable:
        if self._tx.output.side_effects.is_modified(tracker):
            raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, f"argument {tracker.source.name}")
        key = self._seen_behind(tracker.value)
        if type(tracker.value) is not types.MethodType:
            return key
        # A bound method's object is behind the method's source, but Dynamo may know the object by another source.
        method = tracker.value
        return (*key, method.__func__, self._sourced(method.__self__, AttrSource(tracker.source, "__self__"), tracker))

    def _sourced(self, value: Any, source: Source, unseen: VariableTracker) -> Hashable:
        """Key of a value that is still lazy; adds its leaf.  ``unseen`` stands for its tracker if it has none."""
        side_effects = self._tx.output.side_effects
        known = side_effects.id_to_variable.get(id(value))
        source = bare(source)
        if known is None or known.source is None:
            self.leaves.append(Leaf(unseen, (source,)))
            return self._seen_behind(value)
        known_by = bare(known.source)
        sources = (known_by,) if known_by == source else (known_by, source)
        self.leaves.append(Leaf(known, sources))
        key = self._key_of(known)
        return key if len(sources) == 1 else ("by another source", key)

    def _seen_behind(self, value: Any) -> Hashable:
        """Key of a value that the read set describes, whether or not Dynamo has realized it."""
        return "behind", Same(type(value)), self._number(value)

    @staticmethod
    def _keyed(key: Any, value: Any) -> Hashable:
        try:
            return key(value)
        except Unkeyable as e:
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_ARGUMENT, str(e)) from None


def substitution_for(arguments: Arguments, condition: Any) -> SourceSubstitution:
    """From the sources of a traced call's arguments, whose key is equal, to those of ``arguments``.

    Raises CannotReuse if an argument has sources or has none where the traced call's tells of more than its key.
    """
    roots: dict[Source, Source] = {}
    if len(arguments.leaves) != len(condition.leaf_sources):  # the user gave both one key
        raise CannotReuse(ReuseMissReason.ARGUMENTS_DIFFER, "as many of them as in the earlier call")
    for olds, leaf in zip(condition.leaf_sources, arguments.leaves, strict=True):
        if leaf.sources and not olds and type(leaf.tracker.unwrap()) not in (ConstantVariable, SymNodeVariable):
            # The frame made the earlier one. This one may have attributes, or be an object that the call also reads.
            raise CannotReuse(ReuseMissReason.ARGUMENTS_DIFFER, f"{leaf.sources[0].name} is no value of the frame's")
        for i, old in enumerate(olds):
            if i < len(leaf.sources):
                new = leaf.sources[i]
            elif _needs_source(condition, old):
                raise CannotReuse(ReuseMissReason.NO_SOURCE, old.name)
            else:
                continue  # the fingerprint holds all that is known of the old argument
            if roots.setdefault(old, new) != new:
                raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, old.name)
    for old in condition.fixed:
        base = old.base if isinstance(old, ChainedSource) else None
        above = root_of(base, roots) if base is not None else None
        expected = SourceSubstitution({above: roots[above]})(old) if above is not None else old
        if roots.get(old) != expected:
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, f"{old.name} is reached by another path too")
    return SourceSubstitution(roots)


def _needs_source(condition: Any, root: Source) -> bool:
    """Whether the entry knows more of the argument at ``root`` than the fingerprint holds."""
    if any(fact.source == root for fact in condition.facts) or root in condition.ties:
        return True
    return any(s != root and root_of(s, (root,)) for s in (*condition.sources, *condition.unmoved.values()))
