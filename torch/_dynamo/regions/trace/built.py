"""Compares what Dynamo decides when it builds a tracker: metadata of tensors, and whether a number is a constant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._dynamo.regions.keys import lifted_key
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.trace.floats import FloatState, becomes_symbol, check_float, check_guards, float_state
from torch._dynamo.regions.trace.operands import build_as_traced
from torch._dynamo.regions.trace.own_symbols import SymbolMap
from torch._dynamo.regions.trace.state import tensor_state
from torch._dynamo.regions.trace.substitution import GuardAction, GuardActions
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable, UnspecializedPythonVariable
from torch._guards import InvokeSubgraphReuseCondition, Source


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


class IntegerState(NamedTuple):
    """What a call knows of an integer of the program's that is a symbol."""

    # What the shape environment holds the symbol to be.
    number: Any


def built_for(tx: InstructionTranslatorBase, sources: list[Source]) -> list[tuple[Source, Any]]:
    """The state of each tensor and symbolic number that was realized.

    Raises CannotReuse for numbers that Dynamo passes to the graph as tensors, and that are no floats.
    """
    found: list[tuple[Source, Any]] = []
    trackers = tx.output.variable_tracker_cache
    for source in sources:
        tracker = dict.get(trackers, source)
        seen = tracker.unwrap() if tracker is not None and tracker.is_realized() else None
        if (state := float_state(seen)) is not None:
            if seen.proxy.node.graph is not tx.output.current_tracer.graph:  # type: ignore[union-attr]
                # A lookup would read another call's float outside of that body, which Dynamo cannot pass to a ``cond``.
                raise CannotReuse(ReuseMissReason.SYMBOLIC_NUMBER, f"{source.name}, which a body reads")
            found.append((source, state))
        elif type(seen) is SymNodeVariable and isinstance(seen.sym_num, torch.SymInt):
            found.append((source, IntegerState(seen.sym_num.node.expr)))
        elif isinstance(seen, (SymNodeVariable, UnspecializedPythonVariable)):
            raise CannotReuse(ReuseMissReason.SYMBOLIC_NUMBER, source.name)
        elif isinstance(seen, TensorVariable):
            found.append((source, tensor_state(seen)))
    return found


def check_built(
    tx: InstructionTranslatorBase, condition: InvokeSubgraphReuseCondition, actions: GuardActions, symbols_before: int
) -> None:
    """Raises CannotReuse unless Dynamo builds trackers like the traced call's.

    Builds the trackers that tracing the call would build, with their guards and their history of dynamic sizes.
    """
    found: Any = condition
    if found.own_symbols is not None:
        actions.symbols = SymbolMap(tx, found.own_symbols, symbols_before)
    # Asked before a float is built: the call that is traced instead may read it in a body.
    check_guards(condition, actions)
    constants = _constants(condition, actions)
    if symbol := next((source for source in constants if becomes_symbol(tx, actions, source)), None):
        raise CannotReuse(ReuseMissReason.SYMBOLIC_NUMBER, actions.substitution(symbol).name)
    for source, state in found.tensors:
        if isinstance(state, FloatState):
            check_float(tx, actions, source, state)
            continue
        # The frame may have changed the same tensor, so its existing tracker counts. Another is built as in tracing.
        binding = actions.look(source)
        known = tx.output.side_effects.id_to_variable.get(id(binding.value)) if binding.same else None
        lazy = {"allow_lazy_constant": False} if isinstance(state, IntegerState) else {}
        tracker = known if known is not None else build_as_traced(tx, actions, source, **lazy).unwrap()
        if _state_of(tracker, source, actions) != state:
            raise CannotReuse(ReuseMissReason.CAPTURE_DIFFERS, actions.substitution(source).name)
    if actions.symbols is not None:
        actions.symbols.check()
    _build_constants(tx, actions, constants)


def build_for_key(
    tx: InstructionTranslatorBase, condition: InvokeSubgraphReuseCondition, actions: GuardActions, symbols_before: int
) -> None:
    """What ``check_built`` builds, for a call that the user's key says is like the traced one: no state is compared.

    Raises CannotReuse if Dynamo makes a symbol where the traced call had a constant.
    """
    found: Any = condition
    # The metadata, and the number, tell which symbol stands for which.
    if found.own_symbols is not None or any(isinstance(state, IntegerState) for _, state in found.tensors):
        check_built(tx, condition, actions, symbols_before)
        return
    for source, state in found.tensors:
        if not isinstance(state, FloatState) and not actions.look(source).same:
            build_as_traced(tx, actions, source)
    _build_constants(tx, actions, _constants(condition, actions))


def _build_constants(tx: InstructionTranslatorBase, actions: GuardActions, sources: list[Source]) -> None:
    for source in sources:
        if not build_as_traced(tx, actions, source, allow_lazy_constant=False).is_python_constant():
            raise CannotReuse(ReuseMissReason.SYMBOLIC_NUMBER, actions.substitution(source).name)


def _state_of(tracker: Any, source: Source, actions: GuardActions) -> Any:
    is_integer = type(tracker) is SymNodeVariable and isinstance(tracker.sym_num, torch.SymInt)
    if not is_integer and not isinstance(tracker, TensorVariable):
        return None
    value = tracker.sym_num if is_integer else tracker.proxy.node.meta["example_value"]
    state: Any = value.node.expr if is_integer else tensor_state(tracker)
    if actions.symbols is not None:
        actions.symbols.add(source, value, actions.value(source))
        state = actions.symbols.renamed(state)
    return IntegerState(state) if is_integer else state


def _constants(condition: InvokeSubgraphReuseCondition, actions: GuardActions) -> list[Source]:
    """Sources of the numbers that were constants in the traced call, and that the frame does not know yet."""
    checks: Any = condition.checks  # type: ignore[attr-defined]
    numbers: Any = (*checks.numbers, *condition.indices)  # type: ignore[attr-defined]
    new = (s for s in numbers if actions(s) in (GuardAction.REINSTALL, GuardAction.UNDER_ALIAS))
    return [s for s in new if not lifted_key(actions.value(s))]
