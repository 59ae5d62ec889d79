"""Which operators that draw random numbers may be in a region's body.

Note [Random numbers in a body]
A body is called in the place of its operators, so a backend that runs a draw where it stands draws in the program's
order. Inductor replaces draws by numbers made from seeds, which it takes for a whole graph at once; a body is given its
seeds (Note [A body is given its seeds] in region_seeds.py). This holds for the draws that Inductor replaces, on every
device. Others it runs where they stand (``multinomial``; ``bernoulli_`` on a CPU; complex or pinned ones), so after the
seeds of the graph, or before them if the graph has no seed yet. A draw in a body comes after the seeds that the call is
given. So such a draw stays outside; so does one with a generator of the program's, and attention on a GPU, whose kernel
draws by itself. One that writes in place, and one under vmap, become operators of other kinds (``bernoulli_``).

A draw stays outside, too, if nothing that the graph returns depends on it, or if ``fallback_random`` makes Inductor run
all draws where they stand. A backend may still run a draw whose result is never read, but drops a call as a whole. It
may also drop such a draw. So what reads one stays outside as well, or the draw would be an operand of a call. A stamped
call reads an operand only for those of its results that lead to something, and where other results do than in the
traced call, it gets a body of its own. In an export all draws stay outside: the compiler of the exported program's
joint graph may not partition the bodies in it, and a body that is not partitioned draws again in the backward.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Container, Iterable
from typing import Any

import torch
import torch.fx
from torch._dynamo.regions.frame import RegionCall, StampedCall
from torch._dynamo.regions.outline.graph_view import GraphView
from torch._functorch import config as functorch_config
from torch.fx.dtensor_facts import has_dtensor
from torch.fx.operator_facts import (
    OperatorClass,
    draws_random_numbers,
    operator_class,
    runs_its_bodies,
    target_name,
    written_operands,
)
from torch.utils._pytree import tree_leaves


Node = torch.fx.Node

# Names of the draws that Inductor makes from seeds on every device.
_ATTENTION = frozenset(["scaled_dot_product_attention", "multi_head_attention_forward"])
_FROM_SEEDS = frozenset(["dropout", "rand", "rand_like", "randn", "randn_like"]) | _ATTENTION


def seeds_only() -> bool:
    """Whether the settings let a draw of Inductor's depend on nothing but its seed."""
    inductor = sys.modules.get("torch._inductor.config")
    if inductor is not None and (inductor.align_random_eager or inductor.fallback_random):
        return False
    return not functorch_config.functionalize_rng_ops


def is_free_draw(node: Node) -> bool:
    """Whether ``node`` draws random numbers that are the same in a body: Note [Random numbers in a body]."""
    name = target_name(node)
    if name not in _FROM_SEEDS or node.kwargs.get("generator") is not None:
        return False
    if written_operands(node):
        return False  # dropout in place and a draw into ``out`` are others by the time that Inductor sees them
    if has_dtensor(node) or any(_is_generator(a) for a in (*node.args, *node.kwargs.values())):
        return False  # a DTensor's numbers are of a generator that the ranks share
    value = node.meta.get("example_value")
    if node.kwargs.get("pin_memory") or (isinstance(value, torch.Tensor) and value.is_complex()):
        return False
    return name not in _ATTENTION or all(map(_is_on_cpu, tree_leaves(value)))


def _is_generator(argument: Any) -> bool:
    value = argument.meta.get("example_value") if isinstance(argument, Node) else argument
    return isinstance(value, torch.Generator) or (isinstance(argument, Node) and value is None)


def _is_on_cpu(value: Any) -> bool:
    """None: the weights of attention, where the program does not ask for them."""
    return value is None or (isinstance(value, torch.Tensor) and value.device.type == "cpu")


def idle_draws(view: GraphView, draws: set[int]) -> set[int]:
    """Which of ``draws``, and of the operators that run bodies, lead to nothing that the graph returns or writes.

    With what they lead to: an operand that a body does not use is still computed.
    """
    drawing = draws.union(i for i, node in enumerate(view.nodes) if runs_its_bodies(node))
    found: set[int] = set()
    if not drawing:
        return found
    reaching = _reaching(view)
    memory: set[int] = set()
    for i in range(len(view.nodes)):
        leads = not found.isdisjoint(view.operands[i]) or not memory.isdisjoint(view.touched(i))
        if i not in reaching and (i in drawing or leads):
            found.add(i)
            memory.update(view.storages[i], view.written_at(i))
    return found


def note_reads(view: GraphView, calls: Iterable[RegionCall]) -> None:
    """Notes in ``view`` how to tell which operands the stamps of ``calls`` read.

    What leads to nothing in a traced call reads operands, too, and a stamp has all operands of the traced call.
    """
    for call in calls:
        for stamp in call.stamps:
            view.read_by[view.position[stamp.node]] = functools.partial(_read_by, view, call, stamp)


def use_of(view: GraphView, calls: Iterable[RegionCall]) -> Callable[[Node, Container[Node]], bool]:
    """Tells whether a value is used, other than by the given nodes.

    In a graph that draws random numbers, only a use counts that leads to something: a draw without one is dropped.
    """
    if not any(draws_random_numbers(node) or runs_its_bodies(node) for node in view.nodes):
        return lambda node, but: any(user not in but for user in node.users)
    note_reads(view, calls)
    at, reads = view.position, _reaching(view)

    def is_used(node: Node, but: Container[Node]) -> bool:
        outside = (user for user in node.users if user not in but)
        return any(user.op == "output" or at[node] in reads.get(at[user], ()) for user in outside)

    return is_used


def _read_by(view: GraphView, call: RegionCall, stamp: StampedCall, live: set[int], read: set[int]) -> list[int]:
    """Positions of the operands that ``stamp`` reads, if ``live`` and ``read`` are what the graph needs after it."""
    at = view.position
    operands = [(at[old], at[new]) for old, new in zip(call.operands, stamp.operands, strict=True)]
    needed = {at[node] for node, result in stamp.results.items() if at[result] in live}
    memory = {s for old, new in operands if read.intersection(view.storages_at(new)) for s in view.storages_at(old)}
    inside = sorted((at[node] for node in call.nodes if at.get(node, -1) >= 0), reverse=True)
    _sweep(view, inside, needed, memory)
    return [new for old, new in operands if old in needed]


def _reaching(view: GraphView) -> dict[int, list[int]]:
    """Of the operators that lead to what the graph returns, or to a write that is seen outside: what each reads."""
    reaching = {i for i, last in enumerate(view.last_use) if last == len(view.nodes)}
    return _sweep(view, range(len(view.nodes) - 1, -1, -1), reaching, view.storages_outside())


def _sweep(view: GraphView, positions: Iterable[int], reaching: set[int], read: set[int]) -> dict[int, list[int]]:
    """Adds to ``reaching`` what leads to it, or to a write to memory in ``read``, and to ``read`` what is touched.

    ``positions``: latest first, so that one sweep reaches every node.  Returns what each that is reached reads.
    """
    reads = {}
    for i in positions:
        if i not in reaching and i in view.writes:
            written = view.written_at(i)
            known = written and operator_class(view.nodes[i]) is OperatorClass.PURE
            if not known or not read.isdisjoint(written):
                reaching.add(i)
        if i in reaching:
            read_by = view.read_by.get(i)
            reads[i] = view.operands[i] if read_by is None else read_by(reaching, read)
            reaching.update(reads[i])
            read |= view.touched(i)
    return reads
