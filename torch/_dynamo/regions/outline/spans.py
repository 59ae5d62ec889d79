"""What of a graph a region holds as a whole, or not at all: vmaps, and switches of global state.

Note [A switch and its counterpart]
Dynamo records a change of global state as a call in the graph: autocast is entered and left, grad mode and the choice
of attention kernels are set and set back.  A body that holds both calls of a pair leaves the state as it found it, so
they may be in a region together.  What is between them need not be: for operators in it alone there is
Note [A body enters the autocast of its calls] in islands.py.  Of the choice of kernels a body can enter nothing, so
all that is between stays with the pair.

How a body finds grad mode is how the joint graph of a body is traced: switched on.  So a region that is called with
grad mode off holds no switch to on; the pair that begins with one is in no region.
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
    """Program positions that a region holds as a whole: ``members``, from ``first`` to ``last``.

    ``first`` is negative when the span begins before the graph does, so that no region can.
    """

    first: int
    last: int
    members: list[int]


def vmap_spans(nodes: Sequence[Node]) -> list[Span]:
    """For each outermost vmap: from the push of its level to the pop."""
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
    # Positions between a pair that chooses the kernels of attention.
    choosing: set[int] = dataclasses.field(default_factory=set)

    def _pair(self, first: int, last: int, members: list[int]) -> None:
        self.spans.append(Span(first, last, members))
        self.paired.update(members)


def switch_spans(nodes: Sequence[Node], attention_kernels: frozenset[str]) -> SwitchSpans:
    """See Note [A switch and its counterpart]; ``attention_kernels`` are those that the frame began with."""
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
    # Dynamo records no switch to the mode that is on, so each is the counterpart of the one before.
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
    # For each pair that is open: where it begins, and what was chosen before.
    opened: list[tuple[int, frozenset[str]]] = []
    for i, node in enumerate(nodes):
        if node.target is not torch.nn.attention._sdpa_kernel:
            continue
        backends, by_priority = node.args
        if by_priority or not isinstance(backends, (list, tuple)):
            return  # an order of kernels is not told apart here
        chosen = frozenset(str(b.args[0]) for b in backends if isinstance(b, Node))
        if opened and chosen == opened[-1][1]:
            first, now = opened.pop()
            found._pair(first, i, list(range(first, i + 1)))
            found.choosing.update(range(first, i + 1))
            continue
        first = min((position[b] for b in backends if isinstance(b, Node)), default=i)
        opened.append((first, now))
        now = chosen
