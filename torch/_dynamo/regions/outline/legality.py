"""Which nodes may be in a region's body.

Nodes are classified before matching. A legal node may be outlined. An illegal node stays where it is and ends a region.
Inputs and attributes of the graph are not operators and are skipped. A node is legal only if it is known to be
harmless; every refusal has a reason.

The classification answers three questions about each node:

- Is its target one of torch's pure tensor operators (``operator_class``)?
- Does it draw random numbers (``draws_random_numbers``) that would be others in a body (draws.py)?
- Does it write, or have an effect on, one of its operands (``written_operands``)?

An operator that runs bodies is legal if all operators in them are (bodies.py).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.fx
from torch._dynamo.regions.outline.casts import Body, asks_to_keep, shares_cast
from torch._dynamo.regions.outline.draws import idle_draws, is_free_draw
from torch._dynamo.regions.outline.graph_view import GraphView
from torch._dynamo.regions.outline.spans import vmap_spans
from torch.fx.operator_facts import (
    OperatorClass,
    draws_random_numbers,
    is_bracket,
    is_switch,
    operator_class,
    runs_its_bodies,
    takes_gradients,
    target_name,
    writes_a_list,
)
from torch.fx.traceback import MEMORY_BUDGET_ANNOTATION_KEY


Node = torch.fx.Node

# Operators composed of others, ``aten._linalg_check_errors`` among them, which has an effect. A test compares this with
# torch's own samples of all operators.
_CHECKS_FOR_ERRORS = frozenset(
    {
        *("linalg_cholesky", "linalg_inv", "inverse", "linalg_solve", "linalg_tensorinv", "linalg_tensorsolve"),
        *("linalg_ldl_factor", "linalg_lu_factor", "linalg_matrix_power", "matrix_power"),
    }
)


class IllegalReason(enum.Enum):
    """Why a node may not be in a region."""

    UNKNOWN_TARGET = "its target is not one of torch's pure tensor operators"
    NO_RESULT = "it is run for an effect that is not known: no result, and nothing written"
    RANDOM = "it draws random numbers, which could be others in a body"
    UNKEYABLE = "it cannot be keyed"
    NOT_A_TENSOR_OR_SIZE = "its result is neither a tensor nor a size, nor a tuple of them (a float if dynamic=True)"
    OTHER_STATE = "it runs under a choice of kernels, a transform or a setting that the frame did not begin with"
    KEEPS_CASTS = "autocast was asked to keep casts of weights there, and a cast may serve another operator too"
    WRITES_A_LIST = "it writes to tensors in a list, which functionalization does not find in a body"
    BROKEN_SPAN = "it is part of a whole (a written value's life, a vmap) that no region can hold"
    UNKNOWN_BODY = "it has a body of which more is noted than what it does"
    INFERENCE_OPERAND = "it reads outside of inference mode what was made in it, which a call of a body may not save"
    UNKNOWN_POLICY = "what its checkpoint saves is for code to say that may say another thing next time"
    DIFFERENTIATED_IN_GRAPH = "a gradient that the program itself takes goes through it"


class NodeState(NamedTuple):
    """The global state of a node, without grad mode, compared with the state in which the frame began."""

    # Whether autocast is on for any device.
    autocast: bool
    # Whether the choice of attention kernels is unchanged.
    attention: bool
    # Whether the rest of the state is unchanged.
    others: bool
    # Whether autocast was on when the frame began.
    began_in_autocast: bool
    # Whether a region of the frame may draw random numbers at all.
    may_draw: bool


def illegal_nodes(
    view: GraphView,
    state: Callable[[Node], NodeState | None],
    illegal_bodies: Callable[[Node], IllegalReason | None],
    body: Body,
) -> dict[int, IllegalReason]:
    """position -> why the node may not be in any region.

    ``state(node)`` is None if the state is unknown. ``illegal_bodies(node)``: why the bodies that an operator runs may
    not be in a region, or None. ``body(node)``: the graph that a ``get_attr`` node stands for.
    """
    illegal: dict[int, IllegalReason] = {}
    draws = {i for i, node in enumerate(view.nodes) if draws_random_numbers(node)}
    free = {i for i in draws if is_free_draw(view.nodes[i])}
    free.difference_update(*(span.members for span in vmap_spans(view.nodes)))
    for i, node in enumerate(view.nodes):
        if i in view.switches.paired and is_switch(node):
            if asks_to_keep(node):
                illegal[i] = IllegalReason.KEEPS_CASTS
            continue
        reason = _illegal_by_state(view, i, state(node), body, free if i in draws else None)
        if reason := reason or _illegal_alone(node, i in view.writes, illegal_bodies):
            illegal[i] = reason
    for i in idle_draws(view, draws):
        illegal.setdefault(i, IllegalReason.RANDOM)
    for i in reads_inference_tensors(view):
        illegal.setdefault(i, IllegalReason.INFERENCE_OPERAND)
    # Latest first, so that one sweep reaches every node that a gradient goes through.
    differentiated: set[int] = set()
    for i in range(len(view.nodes) - 1, -1, -1):
        if i in differentiated or takes_gradients(view.nodes[i]):
            differentiated.update(view.operands[i])
            illegal.setdefault(i, IllegalReason.DIFFERENTIATED_IN_GRAPH)
    _refuse_broken_spans(view, illegal)
    return illegal


def _has_effect(node: Node) -> bool:
    """Whether ``node`` is, or is composed of, an operator that must keep its place among others with effects.

    AOTAutograd gives such an operator a token. It would learn that a body takes one by the first call, which has none.
    """
    return operator_class(node) is not OperatorClass.PURE or target_name(node) in _CHECKS_FOR_ERRORS


def reads_inference_tensors(view: GraphView) -> set[int]:
    """Positions outside of inference mode that read a tensor of it, or a view of one.

    Autograd saves all operands of a call for the backward of its body, and refuses such a one.  Dynamo traces without
    inference mode, so that neither a fake tensor nor the state of a node shows it.
    """
    found, made, entered = set(), set(), []
    for i, node in enumerate(view.nodes):
        if node.target is torch.autograd.grad_mode._enter_inference_mode:
            entered.append(node)
        elif node.target is torch.autograd.grad_mode._exit_inference_mode:
            entered = [each for each in entered if each is not node.args[0]]
        elif entered and entered[-1].args[0]:
            made.add(i)
        elif made and (read := made.intersection(view.operands[i])):
            found.add(i)
            if any(not set(view.storages_at(i)).isdisjoint(view.storages_at(k)) for k in read):
                made.add(i)
    return found


def _illegal_by_state(
    view: GraphView, i: int, state: NodeState | None, body: Body, free: set[int] | None
) -> IllegalReason | None:
    """``free``: positions of the draws that are the same in a body, if this node is a draw."""
    if is_bracket(view.nodes[i]):
        return None
    if state is None:
        return IllegalReason.UNKNOWN_TARGET
    if free is not None and not (state.may_draw and i in free):
        return IllegalReason.RANDOM
    if not state.others or not (state.attention or i in view.switches.choosing):
        return IllegalReason.OTHER_STATE
    if not state.autocast or i not in view.keeping_casts:
        return None
    lone = view.keeping_casts[i].target is not torch.amp._enter_autocast
    shared = lone or state.began_in_autocast or shares_cast(view.nodes[i], body)
    return IllegalReason.KEEPS_CASTS if shared else None


def _illegal_alone(
    node: Node, writes: bool, illegal_bodies: Callable[[Node], IllegalReason | None]
) -> IllegalReason | None:
    if is_bracket(node):
        return None
    if runs_its_bodies(node):
        if (reason := illegal_bodies(node)) is not None:
            return reason
    elif _has_effect(node):
        return IllegalReason.UNKNOWN_TARGET
    if writes and writes_a_list(node):
        return IllegalReason.WRITES_A_LIST
    value = node.meta.get("example_value")
    if value is None and not writes:
        return IllegalReason.NO_RESULT
    leaves = value if isinstance(value, (tuple, list)) else (value,)
    # A region may compute sizes; the boundary rules keep them inside.
    others = [v for v in leaves if not isinstance(v, (torch.Tensor, torch.SymInt, int))]
    # A symbolic float that is not used is still read when the body is traced.
    if others and (node.users or any(isinstance(v, torch.SymFloat) for v in others)):
        return IllegalReason.NOT_A_TENSOR_OR_SIZE
    return None


def _refuse_broken_spans(view: GraphView, illegal: dict[int, IllegalReason]) -> None:
    """Marks as illegal the members of each span that no region can hold as a whole."""
    pending = view.spans
    while True:
        # counted[i]: number of illegal nodes before position i.
        counted = [0, *itertools.accumulate(int(i in illegal) for i in range(len(view.nodes)))]
        whole = []
        for span in pending:
            end = min(span.last + 1, len(view.nodes))
            if span.first >= 0 and span.last < end and counted[end] == counted[span.first]:
                whole.append(span)
            else:
                for i in span.members:
                    illegal.setdefault(i, IllegalReason.BROKEN_SPAN)
        if len(whole) == len(pending):
            return
        pending = whole


def has_memory_budget(graph: torch.fx.Graph) -> bool:
    """Whether the program gives an operator a memory budget.

    AOTAutograd takes a budget only if each operator of the forward has it, and the calls of bodies have none.
    """
    return any(MEMORY_BUDGET_ANNOTATION_KEY in (node.meta.get("custom") or ()) for node in graph.nodes)
