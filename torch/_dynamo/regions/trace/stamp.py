"""Stamps out calls of a traced region: one ``invoke_subgraph`` node, the guards, and the result.

The node has a getitem for each graph value in the call's result.  It refers to no body while the frame is traced;
regions/outline/stamps.py decides what it becomes.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.regions.frame import FRAME, StampedCall
from torch._dynamo.regions.stack_trace import proxies_of
from torch._dynamo.regions.trace.effects import carry_out
from torch._dynamo.regions.trace.fingerprint import Arguments
from torch._dynamo.regions.trace.floats import guards_to_make
from torch._dynamo.regions.trace.guard_facts import has_guard
from torch._dynamo.regions.trace.lookup import Match, keep_class_lookups, substituted_guards, to_be_tracked
from torch._dynamo.regions.trace.operands import proxy_of_symbol
from torch._dynamo.regions.trace.recipe import Maker, value_like
from torch._dynamo.regions.trace.tracked import track_later
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._guards import Guard, Source, TracingContext
from torch._higher_order_ops.region_metadata import without_guards


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


def stamp_out(tx: InstructionTranslatorBase, arguments: Arguments, match: Match) -> VariableTracker:
    """Records a call of the traced region that ``match`` found; returns the call's result."""
    from torch._dynamo.variables.builder import wrap_fx_proxy

    entry = match.entry
    target = torch.ops.higher_order.invoke_subgraph
    as_proxy = proxies_of(tx.output.current_tracer)
    taken = (None, entry.call.function, *match.operands)
    call = tx.output.create_proxy("call_function", target, taken, {}, proxy_factory_fn=as_proxy)
    # First: what the shape environment learns of this call's symbols.
    for expression in guards_to_make(entry.condition, match.actions):
        tx.output.shape_env.evaluate_expr(expression)
    symbols = match.actions.symbols.moved() if match.actions.symbols is not None else {}
    mode: Any = tx.fake_mode
    with mode, without_guards(mode):
        fresh = [value_like(value, symbols) for value in entry.examples]
    call.node.meta["example_value"] = tuple(fresh)
    for index in entry.writes:
        _note_write(tx, match.operands[index].node.meta["example_value"])
        tx.output.region_tracker.add_node_mutation(call.node, index)
    stamp = StampedCall(call.node, {}, FRAME.of(tx.output).open, symbols)
    trackers = {}
    for k, index in enumerate(entry.results):
        item = tx.output.create_proxy("call_function", operator.getitem, (call, k), {}, proxy_factory_fn=as_proxy)
        trackers[index] = wrap_fx_proxy(tx, item, example_value=fresh[k])
        stamp.results[entry.call.nodes[index]] = trackers[index].as_proxy().node
    entry.call.stamps.append(stamp)
    _install_guards(tx, match)

    def found(source: Source) -> VariableTracker:
        from torch._dynamo.variables.base import VariableTracker

        new = match.actions.substitution(source)
        return VariableTracker.build(tx, match.actions.value(source), new)

    def symbol(old: Any) -> VariableTracker:
        proxy = proxy_of_symbol(tx, match.actions, old)
        return SymNodeVariable.create(tx, proxy, proxy.node.meta["example_value"])

    def given(leaf: int) -> VariableTracker:
        return arguments.leaves[leaf].tracker

    maker = Maker(tx, trackers.__getitem__, given, found, arguments.held, symbol)
    result = entry.recipe.make(maker)
    carry_out(maker, entry.effects)
    return result


def _note_write(tx: InstructionTranslatorBase, written: Any) -> None:
    """Does to an operand's example what the body's write does: its version is another, and its number is not known."""
    torch.autograd.graph.increment_version(written)
    if getattr(written, "constant", None) is not None:
        converter: Any = tx.fake_mode.fake_tensor_converter  # type: ignore[union-attr]
        converter.invalidate_constant_aliases(written.constant)


def _install_guards(tx: InstructionTranslatorBase, match: Match) -> None:
    """Installs the guards that tracing the call would have installed."""
    guards = substituted_guards(match)
    track_later(tx, match.actions, to_be_tracked(match))
    keep_class_lookups(match)
    ordered: list[Source] = match.entry.condition.ordered  # type: ignore[attr-defined]
    tx.output.guard_on_key_order.update(map(match.actions.substitution, ordered))
    # One stack for all guards: extracting it costs more than a guard does.
    user_stack = TracingContext.extract_stack() if guards else None
    made = tx.output.guards
    # Where the frame has traced another call of this layer: tracing would make no guard again, and Dynamo does not take
    # two guards for one that come from different lines of the program.
    before = {source for source, _ in guards if source in made.source_to_guards}
    for source, make in guards:
        if source in before and has_guard(made, source, make):
            continue
        guard = Guard(source, make)
        guard.user_stack = user_stack
        made.add(guard, collect_debug_stack=False)
