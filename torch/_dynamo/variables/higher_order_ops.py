"""Overlay of torch._dynamo.variables.higher_order_ops: traces the body of an operator that only runs its body.

Note [Wrap semantics]
For wrap, checkpoint, invoke_subgraph and BaseHOP, running the operator means running its body. Dynamo goes on tracing
with the trackers of the body's return value, which may be any Python value. So the subgraph need not return that value.
It returns, once, each value that it computed and that is needed outside. If the body returns a value from outside, that
value bypasses the call: its tracker keeps the outer proxy. After the call is recorded, all trackers of an output,
wherever they are held, get the output's proxy. A tracker that is still lazy was by definition not computed in the body,
and stays as it is.

Note [Operators that count positions]
Some callers pair trackers, placeholders and outputs by position, or read the outputs at run time. These get one output
for each tracker, returned inputs included, as in stock:

- autograd.Function has an incoming gradient for each returned tensor, and looks up what backward returns among the
  lifted inputs. In eager, a returned input is a view of the input. Its caller brings its own tracer.
- local_map has a placement for each output. Its caller forces the placeholders.
- The bypassing wrapper calls a function of the user's on the body at run time. That may change what the body returns,
  returned inputs too.
- Stock's variable of invoke_subgraph stamps out later calls from the outputs' metadata, and returns them all.

The first three also need an output for a repeated value: `return y, y` has two incoming gradients, and two placements.
So each position gets a tracker of its own. A value from outside gets a new tracker too, because its own tracker goes on
to mean the value before the call. In eager, the later of two outputs with the same value gets the whole gradient, and
the other gets zeros. It is the same here, because autograd_function_apply runs a real autograd.Function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch._dynamo import graph_break_hints
from torch._dynamo.exc import Unsupported, unimplemented
from torch._dynamo.subgraph_rollback import undone_on_failure
from torch._dynamo.subgraph_values import (
    IN_A_GRAPH,
    GraphOutputs,
    grouped_by_value,
    made_outside,
    one_tracker_per_position,
    realize_all_in,
    trackers_in,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import UserFunctionVariable
from torch._dynamo.variables.higher_order_ops import (
    StorageAliasingTracker,
    SubgraphTracingInfo,
    add_call_function,
    check_aliasing_and_input_mutation,
    get_hop_args,
    log,
    move_lifted_freevars_phs_to_end,
    taint_filtered_vt,
    trace_hop_function_with_auto_output_flattening,
    validate_subgraph_output_types,
)
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.utils._release import RELEASE

from torch_regions.overlay import replaces


if TYPE_CHECKING:
    from torch._dynamo.output_graph import SubgraphTracer
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch.fx import Proxy


_INPUT_MODES = frozenset({"automatic", "automatic_with_forced_inputs", "flatten_manual", "manual"})


def _said(allowed: bool | None) -> bool:
    """Whether a body may write to its inputs, or alias them.  The default is yes before 2.15, and no from then on."""
    return RELEASE < (2, 15) if allowed is None else allowed


@dataclasses.dataclass(frozen=True)
class _Policy:
    """What a body may do, and how its outputs are chosen; see Note [Operators that count positions]."""

    allow_side_effects: bool
    filter_aliased_intermediates: bool
    supports_input_mutation: bool
    supports_aliasing: bool
    supports_input_input_aliasing: bool
    counts_positions: bool
    counts_repeats: bool


def _add_intermediates(
    tx: InstructionTranslatorBase,
    subtracer: SubgraphTracer,
    groups: list[list[VariableTracker]],
    filter_aliased: bool,
) -> None:
    """Adds all values that the body computed, since a side effect may have taken any of them outside."""
    of_node = {group[0].as_proxy().node: group for group in groups}
    aliases = None
    if filter_aliased:
        aliases = StorageAliasingTracker()
        aliases.collect_from_inputs(tx)
        aliases.collect_from_outputs([group[0] for group in groups])
    for node, trackers in grouped_by_value(subtracer.tracked_proxyable_vt).items():
        known = of_node.get(node)
        if known is not None:
            known += [vt for vt in trackers if vt not in known]
        elif isinstance(trackers[0], SymNodeVariable) and trackers[0].python_type() is float:
            continue  # no subgraph may return a float
        elif aliases is None or aliases.check_and_track(node):
            groups.append(trackers)
        else:
            for vt in trackers:
                taint_filtered_vt(vt)


def _record_outputs(tx: InstructionTranslatorBase, subtracer: SubgraphTracer, outputs: GraphOutputs) -> torch.fx.Graph:
    validate_subgraph_output_types(list(outputs))
    proxies = tuple(subtracer.maybe_lift_tracked_freevar_to_input(vt.as_proxy()) for vt in outputs)
    tx.output.create_node("output", "output", subtracer.create_arg((proxies,)), {})
    graph = tx.output.graph
    graph.lint()
    if subtracer.lifted_freevars:
        move_lifted_freevars_phs_to_end(graph, subtracer.lifted_freevars)
    return graph


def _checked_kwargs(sub_kwargs: dict[str, VariableTracker] | None, set_subgraph_inputs: str) -> dict[str, Any]:
    if set_subgraph_inputs not in _INPUT_MODES:
        raise AssertionError(f"set_subgraph_inputs is one of {sorted(_INPUT_MODES)}, not {set_subgraph_inputs!r}")
    if sub_kwargs and set_subgraph_inputs != "automatic":
        unimplemented(
            gb_type="invalid set_subgraph_inputs and sub_kwargs settings",
            context=f"set_subgraph_inputs: {set_subgraph_inputs}, sub_kwargs: {sub_kwargs}",
            explanation="Keyword arguments of a body can only be lifted by set_subgraph_inputs='automatic'.",
            hints=[*graph_break_hints.DYNAMO_BUG],
        )
    return sub_kwargs or {}


def _graph_outputs(
    tx: InstructionTranslatorBase,
    subtracer: SubgraphTracer,
    output: VariableTracker,
    policy: _Policy,
) -> GraphOutputs:
    side_effects = tx.output.side_effects
    if policy.counts_positions:
        realize_all_in(output, side_effects)
    groups = [[vt] for vt in trackers_in(output, side_effects)]
    if not policy.counts_positions:
        inside = [vt for (vt,) in groups if not made_outside(vt.as_proxy(), subtracer)]
        groups = list(grouped_by_value(inside).values())
    allowed = policy.allow_side_effects
    flagged = subtracer.traced_with_externally_visible_side_effects
    if flagged or (allowed and subtracer.side_effect_stack is not None):
        _add_intermediates(tx, subtracer, groups, policy.filter_aliased_intermediates)
    return GraphOutputs.of(groups)


def _looks_at_positions(source_target: Any, set_subgraph_inputs: str, tracer: SubgraphTracer | None) -> bool:
    # See Note [Operators that count positions]
    own = tracer is not None or set_subgraph_inputs != "automatic"
    return own or source_target is torch._higher_order_ops.wrap.dynamo_bypassing_wrapper


def _tell_parent_of_side_effects(subtracer: SubgraphTracer, flagged: bool) -> None:
    """Marks a body's side effect in the surrounding body too: it may be visible outside of both."""
    parent = subtracer.parent
    if parent is None or parent.parent is None:
        return
    if parent.side_effect_stack is None:
        parent.side_effect_stack = subtracer.side_effect_stack
    parent.traced_with_externally_visible_side_effects |= flagged


def _trace_body(
    tx: InstructionTranslatorBase,
    subtracer: SubgraphTracer,
    f: VariableTracker,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
    enable_grad: bool | None,
    source_target: Any,
    policy: _Policy,
) -> tuple[VariableTracker, torch.fx.Graph, GraphOutputs]:
    flag = subtracer.traced_with_externally_visible_side_effects
    try:
        output = trace_hop_function_with_auto_output_flattening(
            f, tx, subtracer, enable_grad, policy.allow_side_effects, args, kwargs
        )
        if policy.counts_repeats:
            output = one_tracker_per_position(output, subtracer)
        outputs = _graph_outputs(tx, subtracer, output, policy)
    finally:
        flagged = subtracer.traced_with_externally_visible_side_effects
        subtracer.traced_with_externally_visible_side_effects = flag
    _tell_parent_of_side_effects(subtracer, flagged)
    graph = _record_outputs(tx, subtracer, outputs)
    check: dict[str, Any] = {
        "supports_input_mutation": policy.supports_input_mutation,
        "supports_aliasing": policy.supports_aliasing,
        "source_target": source_target,
    }
    if RELEASE >= (2, 15):
        check["supports_input_input_aliasing"] = policy.supports_input_input_aliasing
    check_aliasing_and_input_mutation(subtracer, graph, **check)
    return output, graph, outputs


def _speculate(
    tx: InstructionTranslatorBase,
    f: VariableTracker,
    sub_args: Iterable[VariableTracker],
    sub_kwargs: dict[str, VariableTracker] | None,
    description: str,
    source_target: Any,
    enable_grad: bool | None,
    set_subgraph_inputs: str,
    tracer: SubgraphTracer | None,
    policy: _Policy,
) -> tuple[VariableTracker, torch.fx.Graph, dict[Proxy, Proxy], GraphOutputs, SubgraphTracingInfo]:
    kwargs = _checked_kwargs(sub_kwargs, set_subgraph_inputs)
    try:
        with undone_on_failure(tx), tx.output.subtracer(source_target, tracer, description) as subtracer:
            args = get_hop_args(tx, f, subtracer, list(sub_args), kwargs, set_subgraph_inputs, description)
            output, graph, outputs = _trace_body(tx, subtracer, f, args, kwargs, enable_grad, source_target, policy)
            info = SubgraphTracingInfo(subtracer.side_effect_stack, subtracer.traced_sources)
            return output, graph, subtracer.lifted_freevars, outputs, info
    except Unsupported as e:
        name = f.get_name() if isinstance(f, UserFunctionVariable) else type(f).__name__
        log.info("%s: the body %s cannot be traced into one graph, so the call is left to eager", description, name)
        log.info(e)
        raise


def speculate_subgraph_with_wrap_semantics(
    tx: InstructionTranslatorBase,
    f: VariableTracker,
    sub_args: Iterable[VariableTracker],
    sub_kwargs: dict[str, VariableTracker] | None,
    description: str,
    *,
    source_target: Any = None,
    enable_grad: bool | None = None,
    set_subgraph_inputs: str = "automatic",
    restore_side_effects: bool = True,
    under_activation_checkpoint: bool = False,
    supports_input_mutation: bool | None = None,
    supports_aliasing: bool | None = None,
    supports_input_input_aliasing: bool = False,
    tracer: SubgraphTracer | None = None,
) -> tuple[VariableTracker, torch.fx.Graph, dict[Proxy, Proxy], GraphOutputs]:
    """Traces ``f`` into a subgraph: its value, the graph, what the graph lifted, and a tracker for each graph output.

    See Note [Wrap semantics]. If a body may have side effects (``under_activation_checkpoint``, or not
    ``restore_side_effects``) and has some, the graph returns all intermediates of the body; outside of a checkpoint,
    without those that alias an input or output. Any other body raises Unsupported for a side effect that is not undone.
    """
    positions = _looks_at_positions(source_target, set_subgraph_inputs, tracer)
    policy = _Policy(
        allow_side_effects=under_activation_checkpoint or not restore_side_effects,
        filter_aliased_intermediates=not under_activation_checkpoint,
        supports_input_mutation=_said(supports_input_mutation),
        supports_aliasing=_said(supports_aliasing),
        supports_input_input_aliasing=supports_input_input_aliasing,
        counts_positions=positions,
        counts_repeats=positions,
    )
    found = _speculate(
        tx, f, sub_args, sub_kwargs, description, source_target, enable_grad, set_subgraph_inputs, tracer, policy
    )
    return found[:4]


@replaces
def speculate_subgraph_with_auto_output_flattening(
    tx: InstructionTranslatorBase,
    f: VariableTracker,
    sub_args: list[VariableTracker],
    sub_kwargs: dict[str, VariableTracker] | None,
    description: str,
    *,
    source_target: Any = None,
    enable_grad: bool | None = None,
    set_subgraph_inputs: str = "automatic",
    allow_side_effects: bool = False,
    filter_aliased_intermediates: bool = False,
    supports_input_mutation: bool | None = None,
    supports_aliasing: bool | None = None,
    supports_input_input_aliasing: bool = False,
    tracer: SubgraphTracer | None = None,
) -> tuple[VariableTracker, torch.fx.Graph, dict[Proxy, Proxy], GraphOutputs, SubgraphTracingInfo]:
    positions = _looks_at_positions(source_target, set_subgraph_inputs, tracer)
    policy = _Policy(
        allow_side_effects=allow_side_effects,
        filter_aliased_intermediates=filter_aliased_intermediates,
        supports_input_mutation=_said(supports_input_mutation),
        supports_aliasing=_said(supports_aliasing),
        supports_input_input_aliasing=supports_input_input_aliasing,
        counts_positions=positions or source_target is torch._higher_order_ops.invoke_subgraph,
        counts_repeats=positions,
    )
    return _speculate(
        tx, f, sub_args, sub_kwargs, description, source_target, enable_grad, set_subgraph_inputs, tracer, policy
    )


@replaces
def overwrite_tensor_vt_proxy(graph_output_vts: Iterable[VariableTracker], flat_variable: VariableTracker) -> None:
    """Gives all trackers of each output the output's proxy in the calling graph."""
    results = getattr(flat_variable, "items", ())
    others = graph_output_vts.others if isinstance(graph_output_vts, GraphOutputs) else None
    for k, (vt, result) in enumerate(zip(graph_output_vts, results)):
        if not isinstance(vt, IN_A_GRAPH):
            continue
        if not isinstance(result, IN_A_GRAPH):
            raise AssertionError(f"output {k} of the call is no value of a graph: {result}")
        caller: Any = result.proxy.tracer
        for tracker in (vt, *(others[k] if others else ())):
            tracker.proxy = result.proxy
            # The tracker now belongs to the calling graph. If that graph is a body too, it has to return the value, and
            # the tracker gets another proxy then. A side effect may hold the tracker, out of reach of the walk over the
            # body's return value.
            caller.record_proxyable_vt(tracker)


def _call_function_and_unflatten_output_wrap_semantics(
    tx: InstructionTranslatorBase,
    fn: Any,
    args: tuple[Proxy, ...],
    kwargs: dict[str, Proxy],
    flat_example_value: Any,
    body_r: VariableTracker | None,
    graph_output_vts: Iterable[VariableTracker],
    config: Any = None,
) -> VariableTracker | None:
    """Records the call of a body, and gives the trackers of its outputs the call's proxies.  Returns ``body_r``."""
    result = add_call_function(tx, fn, args, kwargs, flat_example_value, config)
    if body_r is None:
        return None
    overwrite_tensor_vt_proxy(graph_output_vts, result)
    return body_r


@replaces
def _call_function_with_auto_output_flattening(
    tx: InstructionTranslatorBase,
    fn: Any,
    args: tuple[Proxy, ...],
    kwargs: dict[str, Proxy],
    flat_example_value: Any,
    body_r: VariableTracker | None,
    graph_output_vts: tuple[VariableTracker, ...],
    config: Any = None,
) -> VariableTracker | None:
    return _call_function_and_unflatten_output_wrap_semantics(
        tx, fn, args, kwargs, flat_example_value, body_r, graph_output_vts, config
    )
