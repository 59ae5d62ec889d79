"""The result of a traced call as a recipe, by which a later call makes its own result.

A recipe is a tree.  Its leaves are values that the body computes (by index of the node), trackers among the arguments
(by index of the ``Leaf``), values with a source (substituted), and constants.  Its inner nodes are the containers and
objects that the call made.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import sympy
import torch
import torch.fx
from torch._dynamo import variables
from torch._dynamo.regions.keys import Unkeyable, hidden_key, tensor_key, value_storages, view_kind
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.release import COMPUTED
from torch._dynamo.regions.renamed import all_renamed, renamed
from torch._dynamo.regions.trace.expressions import Applied, ArgumentValue, BindingValue, SourceValue
from torch._dynamo.regions.trace.fingerprint import Arguments
from torch._dynamo.regions.trace.state import has_grad_fn
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew, VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import ListVariable, SizeVariable, TupleVariable
from torch._dynamo.variables.misc import CellVariable, NewGlobalVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
from torch._dynamo.variables.user_defined import FrozenDataClassVariable, UserDefinedObjectVariable
from torch._higher_order_ops.region_metadata import without_guards
from torch.fx.dtensor_facts import is_dtensor, with_local


if TYPE_CHECKING:
    from torch._dynamo.regions.trace.deferred_values import DeferredValues
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source


# What a program computes of numbers that are symbols, without looking at them.
_ARITHMETIC = {sympy.Add: operator.add, sympy.Mul: operator.mul}

# How a view is made while autograd records.
_WITH_GRAD = torch._C._autograd.CreationMeta.DEFAULT


@dataclasses.dataclass
class Maker:
    """What a recipe needs from the call whose result it makes."""

    tx: InstructionTranslatorBase
    # index of a node in the body -> the tracker of its value
    computed: Callable[[int], VariableTracker]
    # index of a leaf -> the tracker among the arguments
    given: Callable[[int], VariableTracker]
    # source in the traced call -> the tracker of the value at the substituted source
    found: Callable[[Source], VariableTracker]
    # The deferred constants among the arguments.
    held: Sequence[VariableTracker]
    # symbol in the traced call -> the tracker of the symbol that stands for it
    symbol: Callable[[Any], VariableTracker]
    # function that runs once a call -> what it made in this one. It must not hold that itself: it outlives the call.
    made: dict[Callable[[Maker], VariableTracker], VariableTracker] = dataclasses.field(default_factory=dict)

    def constant(self, expression: Any) -> VariableTracker:
        """The value of ``expression`` in this call; deferred, if a surrounding call deferred its operands."""
        if isinstance(expression, ArgumentValue):
            return self.held[expression.number]
        if isinstance(expression, SourceValue):
            return self.found(expression.source)
        if isinstance(expression, BindingValue):
            return expression.load(self.tx)
        if isinstance(expression, Applied):
            parts = [self.constant(part) for part in expression.parts]
            return variables.BuiltinVariable(expression.fn).call_function(self.tx, parts, {})
        return ConstantVariable.create(expression)


class Recipe(NamedTuple):
    """How to make a value: as a function, and as a tuple that can be compared and substituted."""

    # Runs once a call, so that one object stays one object.
    make: Callable[[Maker], VariableTracker]
    says: Any


class RecipeWriter:
    """Writes the recipes of one traced call's result and effects."""

    def __init__(
        self, tx: InstructionTranslatorBase, arguments: Arguments, nodes: list[torch.fx.Node], deferred: DeferredValues
    ) -> None:
        self.tx = tx
        self.arguments = arguments
        self.deferred = deferred
        self.given = {id(leaf.tracker): i for i, leaf in enumerate(arguments.leaves)}
        for i, leaf in enumerate(arguments.leaves):
            known = leaf.tracker.unwrap()
            # Not for constants: the same tracker may stand for another, equal constant.
            if known is not leaf.tracker and type(known) is not ConstantVariable:
                self.given.setdefault(id(known), i)
        self.indices = {node: i for i, node in enumerate(nodes)}
        # Storages of the call's operands: no result may live in one.
        self.outside = {
            storage
            for node in nodes
            for operand in node.all_input_nodes
            if operand not in self.indices
            for storage in value_storages(operand.meta.get("example_value"))
        }
        # Indices of the body's nodes that the result is made of.
        self.results: list[int] = []
        # Values like theirs, with storages of their own. The frame may change the metadata of a result later.
        self.examples: list[torch.Tensor] = []
        # symbol of the frame -> its proxy
        self._symbols: dict[Any, Any] = tx.output.current_tracer.bound_symbols
        self._memo: dict[int, Recipe] = {}
        # Trackers whose parts are being written, to find cycles.
        self._open: list[VariableTracker] = []

    def write_result(self, tracker: VariableTracker) -> Recipe:
        """The recipe of the call's return value.

        Raises CannotReuse if the value is of a kind that is not rebuilt, or if only running the body would rebuild it.
        """
        recipe = self.write(tracker)
        nodes = list(self.indices)
        values = [nodes[p].meta.get("example_value") for p in self.results]
        self.examples = examples_of(self.tx, values, self.outside)
        return recipe

    def has_written(self, trackers: set[int]) -> bool:
        """Whether a recipe makes the value of a tracker with one of these ids anew."""
        return not trackers.isdisjoint(self._memo)

    def write(self, tracker: VariableTracker) -> Recipe:
        """The recipe of a part of the result.  Raises CannotReuse if the part is of a kind that is not rebuilt."""
        if (expression := self.deferred.expression_of(tracker)) is not None:
            return self.write_expression(expression)
        if issubclass(type(tracker), LazyVariableTracker):
            lazy: Any = tracker
            if not lazy.is_realized() and type(lazy) in COMPUTED:
                return self._computed(lazy._cache)
            if not lazy.is_realized():
                if any(lazy is path.seen for path in self.deferred.paths):
                    raise CannotReuse(ReuseMissReason.INDEX_NOT_ALONE, lazy.original_source().name)
                return self._from_source(lazy.original_source())
            tracker = lazy.unwrap()
        if tracker in self._open:
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_RESULT, "an object that holds itself")
        if id(tracker) not in self._memo:
            self._open.append(tracker)
            self._memo[id(tracker)] = _once(self._write(tracker))
            self._open.pop()
        return self._memo[id(tracker)]

    def _write(self, tracker: Any) -> Recipe:
        kind = type(tracker)
        if (index := self.given.get(id(tracker))) is not None:
            return Recipe(lambda maker: maker.given(index), ("argument", index))
        if kind in (TensorVariable, SymNodeVariable):
            return self._value(tracker)
        if tracker.source is not None:
            return self._from_source(tracker.source)
        if kind is ConstantVariable:
            return Recipe(lambda maker: tracker, ("constant", type(tracker.value), repr(tracker.value)))
        if kind in (ListVariable, TupleVariable, SizeVariable):
            items = [self.write(item) for item in tracker.items]
            fresh = {"mutation_type": ValueMutationNew()} if kind is ListVariable else {}
            return Recipe(
                lambda maker: kind([item.make(maker) for item in items], **fresh), (kind, *(i.says for i in items))
            )
        if kind is ConstDictVariable and tracker.python_type() is dict:
            pairs = [(key, self.write(value)) for key, value in tracker.items.items()]
            if not all(type(key.vt) is ConstantVariable for key, _ in pairs):
                raise CannotReuse(ReuseMissReason.UNSUPPORTED_RESULT, "a dict whose keys are no constants")
            return Recipe(
                lambda maker: ConstDictVariable(
                    {key: value.make(maker) for key, value in pairs}, mutation_type=ValueMutationNew()
                ),
                (kind, *((repr(key.vt.as_python_constant()), value.says) for key, value in pairs)),
            )
        if kind in (UserDefinedObjectVariable, FrozenDataClassVariable):
            return self._object(tracker)
        raise CannotReuse(ReuseMissReason.UNSUPPORTED_RESULT, kind.__name__)

    def write_expression(self, expression: Any) -> Recipe:
        """The recipe of an expression or a plain constant."""
        return Recipe(lambda maker: maker.constant(expression), ("expression", expression))

    def _computed(self, cache: Any) -> Recipe:
        """The recipe of a computed constant that the program has not read: each call computes its own."""
        parts = [self.write(part) for part in cache.args]
        return Recipe(
            lambda maker: variables.BuiltinVariable(cache.op).call_function(
                maker.tx, [part.make(maker) for part in parts], {}
            ),
            ("computed", cache.op, *(part.says for part in parts)),
        )

    def write_target(self, tracker: VariableTracker) -> Recipe:
        """The recipe of an object that the call changes."""
        if (index := self.given.get(id(tracker))) is not None:
            return Recipe(lambda maker: maker.given(index), ("argument", index))
        if isinstance(tracker, CellVariable):
            return self.write_fixed(tracker)
        if isinstance(tracker, NewGlobalVariable):
            source: Any = tracker.source
            name = source.global_name

            def bind(maker: Maker) -> VariableTracker:
                bound = maker.tx.output.root_tx.symbolic_globals
                return maker.tx.output.side_effects.track_global_existing(source, bound[name])

            return Recipe(bind, ("global", name))
        return self._from_source(tracker.source)

    def write_fixed(self, tracker: VariableTracker) -> Recipe:
        """The recipe of an object that is the same in every call."""
        return Recipe(lambda maker: tracker, ("the same", id(tracker)))

    def _from_source(self, source: Source | None) -> Recipe:
        if source is None:
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_RESULT, "a value without a source")
        return Recipe(lambda maker: maker.found(source), ("source", source))

    def _value(self, tracker: Any) -> Recipe:
        node = tracker.proxy.node
        index, side_effects = self.indices.get(node), self.tx.output.side_effects
        if side_effects.store_attr_mutations.get(tracker):
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_RESULT, "a tensor with attributes of the user's")
        if index is None:
            if tracker.source is None:
                raise CannotReuse(ReuseMissReason.UNKNOWN_CAPTURE, f"{node} is returned")
            return self._from_source(tracker.source)
        if type(tracker) is SymNodeVariable and isinstance(tracker.sym_num, torch.SymInt):
            return self._number(tracker.sym_num.node._expr)
        if index not in self.results:
            self.results.append(index)
        takes_attributes = type(tracker.mutation_type) is AttributeMutationNew
        return Recipe(lambda maker: _computed(maker, index, takes_attributes), ("result", index, takes_attributes))

    def _number(self, number: Any) -> Recipe:
        """The recipe of a number that the call computes of the frame's symbols: each call computes its own."""
        if number.is_Integer:
            return Recipe(lambda maker: ConstantVariable.create(int(number)), ("constant", int, repr(number)))
        if isinstance(self._symbols.get(number), torch.fx.Proxy):
            return Recipe(lambda maker: maker.symbol(number), ("symbol", number))
        if number.func not in _ARITHMETIC:
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_RESULT, "a size that the body computes")
        function = variables.BuiltinVariable(_ARITHMETIC[number.func])
        parts = [self._number(part) for part in number.args]

        def make(maker: Maker) -> VariableTracker:
            made = (part.make(maker) for part in parts)
            return functools.reduce(lambda one, other: function.call_function(maker.tx, [one, other], {}), made)

        return Recipe(make, ("computed", number.func, *(part.says for part in parts)))

    def _object(self, tracker: Any) -> Recipe:
        if type(tracker.mutation_type) is not AttributeMutationNew or tracker.cls_source is None:
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_RESULT, type(tracker.value).__name__)
        side_effects = self.tx.output.side_effects
        init = [self.write(a) for a in tracker.init_args or []]
        stored = side_effects.store_attr_mutations.get(tracker, {})
        if any(type(value) is variables.DeletedVariable for value in stored.values()):
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_RESULT, "an object with a deleted attribute")
        kinds = {name: side_effects.get_attr_mutation_kind(tracker, name) for name in stored}
        fields = {name: self.write(value) for name, value in stored.items()}

        def make(maker: Maker) -> VariableTracker:
            cls = VariableTracker.build(maker.tx, type(tracker.value), tracker.cls_source, realize=True)
            effects = maker.tx.output.side_effects
            made = effects.track_new_user_defined_object(tracker.base_cls_vt, cls, [a.make(maker) for a in init])
            for name, value in fields.items():
                effects.store_attr(made, name, value.make(maker), kinds[name])
            return made

        says = (type(tracker.value), *(a.says for a in init), *((name, value.says) for name, value in fields.items()))
        return Recipe(make, says)


def _computed(maker: Maker, index: int, takes_attributes: bool) -> VariableTracker:
    """The value at ``index``.  ``takes_attributes``: Dynamo tracks it as a new object, which may get attributes."""
    found = maker.computed(index)
    if takes_attributes and found.mutation_type is None:
        maker.tx.output.side_effects._track_obj(found.as_proxy(), found, mutation_type_cls=AttributeMutationNew)
    return found


def _once(recipe: Recipe) -> Recipe:
    """``recipe``, which runs at most once for each maker."""

    def make(maker: Maker) -> VariableTracker:
        if recipe.make not in maker.made:
            maker.made[recipe.make] = recipe.make(maker)
        return maker.made[recipe.make]

    return Recipe(make, recipe.says)


def value_like(value: torch.Tensor, symbols: dict[Any, Any] | None = None) -> torch.Tensor:
    """A fake tensor with the metadata of ``value`` and a storage of its own.  Call it under the fake mode.

    ``symbols``: symbol of ``value`` -> symbol of the new tensor, where they differ.
    """
    kind = view_kind(value)
    if is_dtensor(value):
        made = with_local(value, value_like(value._local_tensor)).detach()  # type: ignore[attr-defined]
    else:
        sizes, strides = (all_renamed(n, symbols or {}) for n in (value.shape, value.stride()))
        offset = renamed(value.storage_offset(), symbols or {})
        if kind is not None and not value.requires_grad and not (type(offset) is int and offset == 0):
            size = renamed(value.untyped_storage().size() // value.element_size(), symbols or {})
            whole = torch.empty(size, dtype=value.dtype, device=value.device)
            with torch.set_grad_enabled(kind == _WITH_GRAD):
                return whole.as_strided(sizes, strides, offset)
        made = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    if value.requires_grad:
        made.requires_grad_()
        if has_grad_fn(value):
            with torch.enable_grad():
                made = made.clone()  # the result of an operator
    if hidden_key(made) == hidden_key(value):
        return made
    if isinstance(size := value.untyped_storage().size(), int) and not value._has_symbolic_sizes_strides:
        made.untyped_storage().resize_(size)
    with torch.set_grad_enabled(kind == _WITH_GRAD):
        return made if kind is None else torch.ops.aten.alias(made)


def metadata_of(value: torch.Tensor) -> tuple[Any, ...]:
    """What the program can see of a fake tensor without an operator."""
    seen = value.shape, value.stride(), value.storage_offset(), value.dtype, value.requires_grad, has_grad_fn(value)
    local = metadata_of(value._local_tensor) if is_dtensor(value) else ()  # type: ignore[attr-defined]
    return *seen, hidden_key(value), *local


def examples_of(tx: InstructionTranslatorBase, values: list[Any], outside: set[int]) -> list[torch.Tensor]:
    """Values like ``values``, in storages of their own.  Raises CannotReuse if ``value_like`` makes others."""
    taken, found = set(outside), []
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_RESULT, "a size that the body computes")
        storages = value_storages(value)
        if taken.intersection(storages):
            raise CannotReuse(ReuseMissReason.RESULT_SHARES_MEMORY)
        taken.update(storages)
        try:
            tensor_key(value)
        except Unkeyable as e:
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_RESULT, str(e)) from None
        mode: Any = tx.fake_mode
        with mode, without_guards(mode):
            found.append(value_like(value))
            if value.is_conj() or value.is_neg() or metadata_of(found[-1]) != metadata_of(value):
                raise CannotReuse(ReuseMissReason.UNSUPPORTED_RESULT, "a tensor of unusual layout")
    return found
