"""Floats of the program that Dynamo treats as symbols: what a call learned of them, and the same for another call.

Note [A symbolic float is read outside of its region]
Dynamo passes such a float to the graph as a tensor, and reads a symbol off it by ``item`` where the program first reads
the float. When a call is saved, its ``item`` nodes move in front of it. So the number is an operand, which each call
takes from its own source. If the shape environment holds it to be one number, the number takes the operand's place in
the call's operators, as it does in AOTAutograd's graph of a program without regions. Another call must then have the
same number. In both cases the other call's symbol gets the guards that tracing the call made of the call's symbol.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import sympy
import torch
import torch.fx
from torch._dynamo import config
from torch._dynamo.pgo import FrameStateSizeEntry, auto_dynamic, process_automatic_dynamic
from torch._dynamo.regions.frame import Node, RegionCall
from torch._dynamo.regions.keys import constant_key
from torch._dynamo.regions.outcomes import CannotReuse, Difference, ReuseMissReason
from torch._dynamo.regions.size_history import SIZE_HISTORY
from torch._dynamo.regions.trace.operands import build_as_traced, float_source, float_symbol, value_at
from torch._dynamo.regions.trace.substitution import GuardAction, GuardActions
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._guards import InvokeSubgraphReuseCondition, Source
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._pytree import tree_leaves


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


class FloatState(NamedTuple):
    """What a call knows of a symbolic float."""

    symbol: Any
    # Key of the number that the shape environment holds the symbol to be, if any.
    number: Hashable


def float_state(tracker: Any) -> FloatState | None:
    """The state of a realized number; None unless the number is a symbolic float."""
    symbol = float_symbol(tracker.sym_num) if type(tracker) is SymNodeVariable else None
    if symbol is None:
        return None
    held = tracker.sym_num.node.maybe_as_float()
    return FloatState(symbol, None if held is None else constant_key(held))


def becomes_symbol(tx: InstructionTranslatorBase, actions: GuardActions, source: Source) -> bool:
    """Whether Dynamo makes a symbol of the float at the substituted ``source`` where tracing first reads it."""
    binding = actions.substitution.binding(source)
    if binding.tracker is not None or actions(source) is GuardAction.UNDER_ALIAS:
        return False
    value = value_at(actions.value, source)
    at = actions.substitution.of(binding)
    if dict.get(tx.output.variable_tracker_cache, at) is not None:
        return False
    if type(value) is not float or config.specialize_float or not math.isfinite(value):
        return False
    if not config.assume_static_by_default:
        return True
    with SIZE_HISTORY.of(tx.output).as_asked_for(source.name):
        history = process_automatic_dynamic(tx, at.name, FrameStateSizeEntry.make_scalar(value))  # type: ignore[arg-type]
    return history.scalar is auto_dynamic


def take_out(call: RegionCall) -> None:
    """Moves the reads of symbolic floats in front of ``call``: see the Note."""
    reads = {node for node in call.nodes if float_source(node) is not None}
    # A branch on floats leaves a comparison, whose value no operator uses.
    for node in call.nodes:
        unused = not node.users and isinstance(node.meta.get("example_value"), torch.SymBool)
        if unused and all(float_source(operand) is not None for operand in node.all_input_nodes):
            reads.add(node)
    inside = set(call.nodes).difference(reads)
    if reads and inside:
        first = next(node for node in call.nodes if node in inside)
        for node in call.nodes:
            if node in reads:
                first.prepend(node)
        call.nodes = [node for node in call.nodes if node in inside]
    for node in {o: None for n in call.nodes for o in n.all_input_nodes if o not in inside}:
        if float_source(node) is None:
            continue
        held = node.meta["example_value"].node.maybe_as_float()
        # The shape environment does not tell -0.0 from 0.0.
        if held is not None and constant_key(held) == constant_key(node.args[0].meta["grapharg"].example.item()):
            _put_number(node, held, inside)


def _put_number(node: Node, number: float, inside: set[Node]) -> None:
    for user in [user for user in node.users if user in inside]:
        user.args, user.kwargs = torch.fx.map_arg(
            (user.args, user.kwargs), lambda operand: number if operand is node else operand
        )


def guards_on_floats(
    tx: InstructionTranslatorBase, tensors: list[tuple[Source, Any]], nodes: list[Node], before: int
) -> list[Any]:
    """The expressions that the call, with ``nodes``, has guarded of its symbolic floats.

    ``tensors``: states by source. ``before``: the number of the shape environment's guards when the call began. Raises
    CannotReuse if a guard is older, or is about other symbols too, or if a size or number is computed from a float.
    """
    own = {state.symbol for _, state in tensors if isinstance(state, FloatState)}
    if not own:
        return []
    found = []
    for i, guard in enumerate(tx.output.shape_env.guards):
        about = guard.expr.free_symbols
        if about.isdisjoint(own):
            continue
        if i < before or not about <= own:
            raise CannotReuse(ReuseMissReason.SYMBOLIC_NUMBER, f"{guard.expr} is guarded")
        found.append(guard.expr)
    for node in nodes:
        for value in tree_leaves(node.meta.get("example_value")):
            known = isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))
            if known and not free_symbols(value).isdisjoint(own):
                raise CannotReuse(ReuseMissReason.SYMBOLIC_NUMBER, f"{node} is computed from a float")
    return found


def check_float(tx: InstructionTranslatorBase, actions: GuardActions, source: Source, old: FloatState) -> None:
    """Raises CannotReuse unless the float at the substituted ``source`` is one that the traced call could have had."""
    binding = actions.look(source)
    name, value = actions.substitution(source).name, binding.value
    if type(value) is not float or binding.action not in (GuardAction.SAME, GuardAction.REINSTALL):
        raise CannotReuse(ReuseMissReason.SYMBOLIC_NUMBER, name)
    if old.number is not None and constant_key(value) != old.number:
        differs = Difference(name, source.name, repr(value), "another number")
        raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{name}: {value!r}", differs)
    tracker = build_as_traced(tx, actions, source, allow_lazy_constant=False).unwrap()
    if float_state(tracker) is None:
        raise CannotReuse(ReuseMissReason.SYMBOLIC_NUMBER, name)


def check_floats(tx: InstructionTranslatorBase, condition: InvokeSubgraphReuseCondition, actions: GuardActions) -> None:
    """Raises CannotReuse unless all symbolic floats are as in the traced call."""
    check_guards(condition, actions)
    for source, state in condition.tensors:  # type: ignore[attr-defined]
        if isinstance(state, FloatState):
            check_float(tx, actions, source, state)


def check_guards(condition: InvokeSubgraphReuseCondition, actions: GuardActions) -> None:
    """Raises CannotReuse unless the guards on the traced call's symbolic floats hold for this call's floats.

    To be asked before one of them is built: the call that is traced instead may read it in a body (a branch of
    ``cond``), to which Dynamo cannot pass a number.
    """
    found: Any = condition
    if not found.floats:
        return
    values = {old.symbol: actions.look(at).value for at, old in found.tensors if isinstance(old, FloatState)}
    numbers = {symbol: sympy.Float(value) for symbol, value in values.items() if type(value) is float}
    for guard in found.floats if len(numbers) == len(values) else ():
        if guard.xreplace(numbers) != True:  # noqa: E712 (sympy's)
            raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{guard}, where {numbers}")


def guards_to_make(condition: InvokeSubgraphReuseCondition, actions: GuardActions) -> list[Any]:
    """The expressions on this call's symbols that tracing the call would guard."""
    found: Any = condition
    of_sizes = actions.symbols.guards() if actions.symbols is not None else []
    if not found.floats:
        return of_sizes  # type: ignore[no-any-return]
    new: dict[Any, Any] = {}
    for source, old in found.tensors:
        if isinstance(old, FloatState):
            tracker: Any = actions.substitution.binding(source).tracker
            new[old.symbol] = float_symbol(tracker.unwrap().sym_num)
    return [*of_sizes, *(guard.xreplace(new) for guard in found.floats)]
