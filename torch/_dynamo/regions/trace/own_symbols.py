"""Symbols of sizes and integers that belong to one call, and what another call has in their place.

Note [A call's own symbols]
A layer may read a tensor whose length moves and that no other layer reads: its part of a growing cache. Dynamo gives
each such length a symbol where tracing first reads the tensor, so every call has symbols of its own. It does the same
for an integer that moves: how many tokens a sliding window has seen. Another call may have other symbols in their
place if the symbols map one to one, and each that stands for another one

- is as new to the frame: neither call found a symbol that the frame had met before;
- has the same hint, and was made under the same rules (which dimensions are dynamic, and within which bounds).

Then tracing would decide everything as the traced call did, since the shape environment knew nothing else of either
symbol when its call began. A symbol that the frame knows maps to itself. The other call's symbols get the guards that
tracing the call made of the traced call's symbols.

If the shape environment came to hold each symbol and the one that it stands for to be equal (all layers add one mask,
so they have one length), the calls share the body. They also do without a backward (Note [A body serves sizes of
several names] in outline/renaming.py). Otherwise the stamp becomes operators again at the end of the frame
(``StampedCall.symbols``): the call is not traced, and the search finds the operators around those that have the
symbols.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.fx
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.renamed import SYMBOLIC
from torch._dynamo.regions.trace.substitution import Resolver
from torch._guards import Source
from torch._higher_order_ops.metadata_keys import renamed_key
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.symbol import SymT, symbol_is_type


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


# Fields of a symbolic context that name the tensor, or hold symbols by name.
_OF_ONE_TENSOR = ("tensor_source", "shape_env_to_source_to_symbol_cache")


class OwnSizes(NamedTuple):
    """Sizes of a tensor, or an integer of the program's, as Dynamo made them."""

    # Sizes, strides and offset, or the integer: numbers and expressions.
    sizes: tuple[Any, ...]
    # The rules under which Dynamo made symbols of them.
    rules: Hashable


class OwnSymbols(NamedTuple):
    """What a traced call knows of the symbols that it was the first to read."""

    # source of a tensor or integer with such symbols -> its sizes
    values: dict[Source, OwnSizes]
    # symbol -> what the shape environment holds it to be after the call
    ends: dict[Any, Any]
    # The expressions with such symbols that the call has guarded, in order.
    guards: list[Any]
    # Those of them that the call's values and guards have. (A view's base has sizes of its own.)
    used: set[Any]
    # Whether operators of the call have bodies. These are not copied with other symbols.
    has_bodies: bool


def symbols_so_far(tx: InstructionTranslatorBase) -> tuple[int, int]:
    """The numbers of symbols and of guards in the shape environment, which keeps both in order."""
    return len(tx.output.shape_env.backed_var_to_val), len(tx.output.shape_env.guards)


def _sizes(value: torch.Tensor | torch.SymInt) -> tuple[Any, ...]:
    """Sizes, strides and offset as they were made, without what the shape environment has put in their place."""
    numbers: tuple[Any, ...] = (value,)
    if isinstance(value, torch.Tensor):
        numbers = (*value.shape, *value.stride(), value.storage_offset())
    return tuple(n.node._expr if isinstance(n, torch.SymInt) else n for n in numbers)


def _symbols(sizes: Iterable[Any]) -> set[Any]:
    return {symbol for size in sizes if type(size) is not int for symbol in size.free_symbols}


def _rules(tx: InstructionTranslatorBase, real: Any) -> Hashable:
    if type(real) is int:
        return None  # Dynamo makes a symbol of any integer under the same rules
    context = tx.output.tracing_context.tensor_to_context.get(real)
    if context is None:
        raise CannotReuse(ReuseMissReason.CAPTURE_DIFFERS, "a tensor of which Dynamo has no symbolic context")
    return _context_key(context)


def _context_key(context: Any) -> Hashable:
    fields = (f.name for f in dataclasses.fields(context) if f.name not in _OF_ONE_TENSOR)
    values = ((name, getattr(context, name)) for name in fields)
    return type(context), tuple((n, _context_key(v) if dataclasses.is_dataclass(v) else repr(v)) for n, v in values)


def own_symbols(
    tx: InstructionTranslatorBase,
    built: list[tuple[Source, Any]],
    resolve: Resolver,
    before: tuple[int, int],
    nodes: list[torch.fx.Node],
) -> OwnSymbols | None:
    """What a call that was just traced knows of its own symbols; None without any.

    ``built``: sources and states of the tensors and numbers that it read. ``before``: the numbers of the frame's
    symbols and of the shape environment's guards when the call began. ``nodes``: the call's operators.
    """
    env = tx.output.shape_env
    new = list(env.backed_var_to_val)[before[0] :]
    own = {symbol for symbol in new if symbol_is_type(symbol, SymT.SIZE)}
    if not own:
        return None
    trackers, found = tx.output.variable_tracker_cache, {}
    for source, _ in built:
        tracker: Any = dict.__getitem__(trackers, source)
        value = tracker.unwrap().proxy.node.meta["example_value"]
        is_number = isinstance(value, torch.SymInt)
        may_have_some = is_number or (isinstance(value, torch.Tensor) and value._has_symbolic_sizes_strides)
        if may_have_some and not own.isdisjoint(_symbols(sizes := _sizes(value))):
            found[source] = OwnSizes(sizes, _rules(tx, resolve(source)))
    guards = [g.expr for g in env.guards[before[1] :] if not own.isdisjoint(g.expr.free_symbols)]
    values = [value for node in nodes for value in tree_leaves(node.meta.get("example_value")) if _has_symbols(value)]
    used = own.intersection(_symbols(guards).union(*map(free_symbols, values)))
    ends = {symbol: env.replace(symbol) for symbol in own}
    return OwnSymbols(found, ends, guards, used, any(node.op == "get_attr" for node in nodes))


def _has_symbols(value: Any) -> bool:
    return isinstance(value, SYMBOLIC) or (isinstance(value, torch.Tensor) and value._has_symbolic_sizes_strides)


class SymbolMap:
    """What a call has in the place of the traced call's own symbols."""

    def __init__(self, tx: InstructionTranslatorBase, own: OwnSymbols, before: int) -> None:
        """``before``: the number of the frame's symbols when this call began."""
        self._tx = tx
        self._own = own
        self._before = before
        # symbol of the traced call -> symbol of this call
        self._new: dict[Any, Any] = {}
        # symbol of this call that stands for another one -> what the shape environment will hold it to be
        self._ends: dict[Any, Any] = {}

    def add(self, source: Source, fake: torch.Tensor | torch.SymInt, real: torch.Tensor | int) -> None:
        """Maps the symbols of the value at ``source``.  Raises CannotReuse if they cannot stand for the others."""
        old = self._own.values.get(source)
        if old is None:
            return
        sizes = _sizes(fake)
        for one, other in zip(old.sizes, sizes):
            if one in self._own.ends:
                self._map(one, other)
        if len(old.sizes) != len(sizes) or any(
            type(one) is not int and one.xreplace(self._new) != other for one, other in zip(old.sizes, sizes)
        ):
            raise CannotReuse(ReuseMissReason.CAPTURE_DIFFERS, f"{source.name} has {sizes}, not {old.sizes}")
        if not self._ends.keys().isdisjoint(_symbols(sizes)) and _rules(self._tx, real) != old.rules:
            raise CannotReuse(ReuseMissReason.CAPTURE_DIFFERS, f"which sizes of {source.name} are symbols, and why")

    def _map(self, old: Any, new: Any) -> None:
        if self._new.setdefault(old, new) != new:
            raise CannotReuse(ReuseMissReason.CAPTURE_DIFFERS, f"{old} is {new} and {self._new[old]}")
        if old == new:
            return
        values = self._tx.output.shape_env.backed_var_to_val
        if (
            new not in itertools.islice(values, self._before, None)
            or (new in self._ends and self._old_of(new) != old)
            or values[new] != values[old]
            or new.assumptions0 != old.assumptions0
            or self._tx.output.shape_env.replace(new) != new
            or self._own.has_bodies
        ):
            raise CannotReuse(ReuseMissReason.CAPTURE_DIFFERS, f"{new} cannot stand for {old}")
        self._ends[new] = self._own.ends[old]

    def _old_of(self, new: Any) -> Any:
        return next(old for old, symbol in self._new.items() if symbol == new)

    def check(self) -> None:
        """Raises CannotReuse if the call has nothing in the place of a symbol.  To be asked when all are added."""
        ends = self._own.ends
        needed = self._own.used.union(*(ends[old].free_symbols & ends.keys() for old in self._new))
        if self._ends and (unknown := needed - self._new.keys()):
            raise CannotReuse(ReuseMissReason.CAPTURE_DIFFERS, f"{', '.join(map(str, unknown))} stands nowhere")

    def all_moved(self) -> dict[Any, Any]:
        """Symbol of the traced call -> symbol of this call, where they differ."""
        return {old: new for old, new in self._new.items() if old != new}

    def moved(self) -> dict[Any, Any]:
        """``all_moved``, without symbols that are one by now.  To be asked when ``guards`` have been made."""
        now = self._tx.output.shape_env.replace
        return {old: new for old, new in self.all_moved().items() if now(old) != now(new)}

    def symbol(self, old: Any) -> Any:
        """The symbol of this call that stands for ``old``."""
        return self._new.get(old, old)

    def renamed(self, key: Any) -> Any:
        """A key of this call's tensor, with the expressions that the shape environment will hold its symbols to be."""
        return renamed_key(key, self._ends)

    def guards(self) -> list[Any]:
        """The expressions that tracing this call would guard of its symbols."""
        moved = self.all_moved()
        return [guard.xreplace(moved) for guard in self._own.guards if not moved.keys().isdisjoint(guard.free_symbols)]
