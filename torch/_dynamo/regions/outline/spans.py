"""What a region must hold as a whole or not at all: vmaps, and switches of global state.

Note [A switch and its counterpart]
Dynamo records a change of global state as a call in the graph: autocast is entered and left; grad mode and the choice
of attention kernels are set and reset. A body that holds both calls of a pair leaves the state as it found it, so both
may be in a region together. The nodes between them need not be: operators inside an autocast may form a region without
the pair, see Note [A body enters the autocast of its calls] in islands.py. A body cannot enter a choice of attention
kernels, so all nodes between such a pair belong to its span.

The joint graph of a body is traced with grad mode on. So a region that is called with grad mode off holds no switch to
on: a pair that begins with such a switch is in no region.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.fx
from torch._functorch.predispatch import _vmap_decrement_nesting, _vmap_increment_nesting


Node = torch.fx.Node


@dataclasses.dataclass
class Span:
    """Positions that a region must hold as a whole: ``members``, from ``first`` to ``last``.

    ``first`` is negative if the span begins before the graph, so that no region can hold it.
    """

    first: int
    last: int
    members: list[int]


def vmap_spans(nodes: Sequence[Node]) -> list[Span]:
    """For each outermost vmap: the span from the push of its level to the pop."""
    spans: list[Span] = []
    depth = 0
    for i, node in enumerate(nodes):
        if node.target is _vmap_increment_nesting:
            if depth == 0:
                spans.append(Span(i, len(nodes), []))
            depth += 1
        if depth:
            spans[-1].members.append(i)
        if node.target is _vmap_decrement_nesting:
            depth -= 1
            if depth == 0:
                spans[-1].last = i
    return spans


@dataclasses.dataclass
class SwitchSpans:
    """The pairs of switches in a graph."""

    spans: list[Span] = dataclasses.field(default_factory=list)
    # Positions of the switches that have a counterpart.
    paired: set[int] = dataclasses.field(default_factory=set)
    # Positions within a pair that sets the attention kernels, both ends included.
    choosing: set[int] = dataclasses.field(default_factory=set)

    def _pair(self, first: int, last: int, members: list[int]) -> None:
        self.spans.append(Span(first, last, members))
        self.paired.update(members)


def switch_spans(nodes: Sequence[Node], attention_kernels: frozenset[str]) -> SwitchSpans:
    """See Note [A switch and its counterpart]; ``attention_kernels``: those enabled when the frame began."""
    found = SwitchSpans()
    position = {node: i for i, node in enumerate(nodes)}
    _pair_autocast(found, nodes, position)
    _pair_grad_mode(found, nodes)
    _pair_attention_kernels(found, nodes, position, attention_kernels)
    return found


def _pair_autocast(found: SwitchSpans, nodes: Sequence[Node], position: dict[Node, int]) -> None:
    for j, node in enumerate(nodes):
        if node.target is torch.amp._exit_autocast and isinstance(node.args[0], Node) and node.args[0] in position:
            i = position[node.args[0]]
            found._pair(i, j, [i, j])


def _pair_grad_mode(found: SwitchSpans, nodes: Sequence[Node]) -> None:
    # Dynamo records no switch to the mode that is already on, so each switch is the counterpart of the one before.
    off = None
    for i, node in enumerate(nodes):
        if node.target is torch._C._set_grad_enabled:
            if node.args[0] is False:
                off = i
            elif off is not None:
                found._pair(off, i, [off, i])
                off = None


def _pair_attention_kernels(
    found: SwitchSpans, nodes: Sequence[Node], position: dict[Node, int], now: frozenset[str]
) -> None:
    # For each open pair: its first position, and the choice before it.
    opened: list[tuple[int, frozenset[str]]] = []
    for i, node in enumerate(nodes):
        if node.target is not torch.nn.attention._sdpa_kernel:
            continue
        backends, by_priority = node.args
        if by_priority or not isinstance(backends, (list, tuple)):
            return  # the comparison below ignores an order of kernels
        chosen = frozenset(str(b.args[0]) for b in backends if isinstance(b, Node))
        if opened and chosen == opened[-1][1]:
            first, now = opened.pop()
            found._pair(first, i, list(range(first, i + 1)))
            found.choosing.update(range(first, i + 1))
            continue
        first = min((position[b] for b in backends if isinstance(b, Node)), default=i)
        opened.append((first, now))
        now = chosen
