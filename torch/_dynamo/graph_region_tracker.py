"""Finds the repeated regions of a graph, for graph_deduplication to outline.

While Dynamo traces, ``track_node`` notes under which global state each operator is recorded and
``track_node_mutations`` which operands it wrote.  At the end of the frame
``get_identical_regions`` goes through these steps, each in a module of its own:

1. classify   which nodes may be in a region                     regions/outline/legality.py
2. identify   equal keys for nodes that mean the same            regions/keys.py
3. match      repeated runs of keys in program order             regions/outline/repeats.py
4. fit        best extent and rotation; equal wiring; nothing
              crosses the boundary that may not                  regions/outline/graph_view.py, here

A region is a run of consecutive operators, see Note [Regions are intervals of program order].
Time and memory are near-linear in the graph: n log^2 n comparisons to sort suffixes, and linear
work in each of at most ``MAX_ROUNDS`` rounds, each on what the rounds before left over.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch._logging
import torch.fx
from torch._dynamo.regions.keys import NodeIdentity, Unkeyable, node_storages
from torch._dynamo.regions.outline.fit import Fitter, RepeatBenefit
from torch._dynamo.regions.outline.graph_view import GraphView, inputs_of
from torch._dynamo.regions.outline.legality import IllegalReason
from torch._dynamo.regions.outline.repeats import MIN_NODES_SAVED, Repeat, find_repeats, nodes_saved
from torch.fx.operator_facts import (
    OperatorClass,
    draws_random_numbers,
    is_bracket,
    operator_class,
    takes_gradients,
    writes_a_list,
    written_operands,
)
from torch.utils._ambient_state import ambient_state, global_state_key
from torch.utils._ordered_set import OrderedSet


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


Node = torch.fx.Node
Region = list[Node]
GlobalStateKey = Hashable

# Rounds of matching; each works on the nodes that are in no region yet. Few graphs need four.
MAX_ROUNDS = 16

log = logging.getLogger(__name__)
graph_expansion_log = torch._logging.getArtifactLogger(__name__, "graph_region_expansion")


def get_global_state_key() -> GlobalStateKey:
    """Global state that decides what an operator does, at this moment, as a hashable value."""
    return global_state_key()


@dataclasses.dataclass
class Stats:
    """Counters of one pass."""

    operators: int = 0
    illegal: dict[IllegalReason, int] = dataclasses.field(default_factory=lambda: defaultdict(int))
    rounds: int = 0
    groups: int = 0
    regions: int = 0
    outlined: int = 0  # operators that are in a region


class Group(NamedTuple):
    """Identical regions, and what they mean."""

    regions: list[Region]
    meaning: Hashable


def meaning(view: GraphView, sequence: list[int], start: int, length: int) -> Hashable:
    """What a run of nodes is: equal for two runs, in any graphs numbered alike, iff one body serves both."""
    end = start + length
    return tuple(sequence[start:end]), view.signature(start, end)


class GraphRegionTracker:
    """Tracks the nodes of one Dynamo output graph and finds its repeated regions."""

    def __init__(self) -> None:
        # node -> number of the global state under which it was recorded.
        self._state_of_node: dict[Node, int] = {}
        # global state -> its number; a frame sees few different ones.
        self._state_numbers: dict[GlobalStateKey, int] = {}
        # number of a global state -> whether it is that of the frame's begin, but for grad mode.
        self._is_ambient: list[bool] = []
        self._ambient = ambient_state(global_state_key())
        # node -> which of its operands (indices in its flattened args and kwargs, nodes only)
        # changed when it was run on fake tensors.
        self.node_to_mutated_arg_positions: dict[Node, OrderedSet[int]] = {}
        # The graph to whose inputs a region may write, if any: Note [A region may write to an input].
        self.open_graph: torch.fx.Graph | None = None
        self.began_with_grad = torch.is_grad_enabled()
        self.stats = Stats()

    def track_node(self, tx: InstructionTranslatorBase, node: Node) -> None:
        """Notes the global state that ``node`` is recorded under.  Its value need not be known yet."""
        if node not in self._state_of_node:
            state = global_state_key()
            number = self._state_numbers.setdefault(state, len(self._state_numbers))
            if number == len(self._is_ambient):
                self._is_ambient.append(ambient_state(state) == self._ambient)
            self._state_of_node[node] = number

    def track_node_mutations(
        self,
        node: Node,
        flat_args_kwargs: list[Any],
        id_to_initial_version: dict[int, int],
    ) -> None:
        """Notes the operands whose version counter moved when ``node`` was run.

        ``flat_args_kwargs``: values of the operand nodes, flat; ``id_to_initial_version``: id of
        such a value -> its version before the run.
        """
        for index, value in enumerate(flat_args_kwargs):
            before = id_to_initial_version.get(id(value))
            if before is not None and value._version != before:
                self.add_node_mutation(node, index)

    def add_node_mutation(self, node: Node, arg_pos: int) -> None:
        """Notes that ``node`` writes to its operand at index ``arg_pos``."""
        self.node_to_mutated_arg_positions.setdefault(node, OrderedSet()).add(arg_pos)

    def copy_track(self, node: Node, copy: Node) -> None:
        """Notes of ``copy``, which stands for ``node`` in a body, what is noted of ``node``."""
        if node in self._state_of_node:
            self._state_of_node[copy] = self._state_of_node[node]
        if node in self.node_to_mutated_arg_positions:
            self.node_to_mutated_arg_positions[copy] = self.node_to_mutated_arg_positions[node]

    def written_operands(self, node: Node) -> list[Node]:
        """Operands that ``node`` writes to, by what it is and by what its run on fake tensors did."""
        written = written_operands(node)
        if indices := self.node_to_mutated_arg_positions.get(node):
            operands: list[Node] = []
            torch.fx.map_arg((node.args, node.kwargs), operands.append)
            written = written + [operands[index] for index in indices]
        return written

    def written_inputs(self, region: Region) -> list[int]:
        """Indices, among the values that ``region`` takes from outside, of those that it writes to."""
        written = {s for node in region for operand in self.written_operands(node) for s in node_storages(operand)}
        return [k for k, operand in enumerate(inputs_of(region)) if written.intersection(node_storages(operand))]

    def view(self, graph: torch.fx.Graph, wanted: Iterable[Node] = (), closed: Iterable[Node] = ()) -> GraphView:
        """``graph`` as it now is."""
        return GraphView(graph, self.written_operands, wanted, graph is self.open_graph, closed)

    def get_identical_regions(self, graph: torch.fx.Graph) -> list[list[Region]]:
        """Groups of identical regions of ``graph``, largest saving first.

        Every group has two regions or more, of equal length; the k-th nodes of the regions of a
        group correspond.  A region is in program order; no node is in two.  Nodes of ``graph``
        that were never tracked are in none.
        """
        return [group.regions for group in self.find_groups(graph, {})]

    def find_groups(
        self, graph: torch.fx.Graph, numbers: dict[Hashable, int], least_saved: int = MIN_NODES_SAVED
    ) -> list[Group]:
        """Like ``get_identical_regions``, with what the regions mean; ``numbers`` as for ``sequence``."""
        self.stats = Stats()
        view = self.view(graph)
        self.stats.operators = len(view.nodes)
        sequence = self.sequence(view, numbers)
        groups = _Finder(view, sequence, self.stats, least_saved).find()
        for group in groups:
            graph_expansion_log.debug(
                "region group of %d x %d nodes, first region: %s",
                len(group.starts),
                group.length,
                view.nodes[group.starts[0] : group.starts[0] + group.length],
            )
        graph_expansion_log.debug("%s", self.stats)
        return [
            Group([view.nodes[s : s + g.length] for s in g.starts], meaning(view, sequence, g.starts[0], g.length))
            for g in groups
        ]

    def sequence(
        self, view: GraphView, numbers: dict[Hashable, int], wanted: Container[int] | None = None
    ) -> list[int]:
        """One integer a node: that of its key, or a negative one of its own when it may not be in a region.

        ``numbers``: key -> its integer, extended here; share it to compare the nodes of several graphs.
        ``wanted``: positions of the nodes that matter, all when None; the others count as illegal.
        """
        illegal = self._illegal_nodes(view)
        identity = NodeIdentity()
        own = itertools.count(-1, -1)
        sequence = []
        for i, node in enumerate(view.nodes):
            reason = illegal.get(i)
            if reason is None and (wanted is None or i in wanted):
                try:
                    # The pop of a vmap is recorded without being tracked; it has no state.
                    key = identity.key(node, self._state_of_node.get(node))
                    sequence.append(numbers.setdefault(key, len(numbers)))
                    continue
                except Unkeyable as e:
                    reason = illegal[i] = IllegalReason.UNKEYABLE
                    graph_expansion_log.debug("%s has no key: %s", node.name, e)
            if reason is not None:
                self.stats.illegal[reason] += 1
                graph_expansion_log.debug("%s stays: %s", node.name, reason.value)
            sequence.append(next(own))
        return sequence

    def _illegal_nodes(self, view: GraphView) -> dict[int, IllegalReason]:
        """position -> why the node there may not be in any region."""
        illegal: dict[int, IllegalReason] = {}
        for i, node in enumerate(view.nodes):
            if reason := self._illegal_alone(node, writes=i in view.writes):
                illegal[i] = reason
        # Latest first, so that one sweep reaches all that lead to a gradient.
        differentiated: set[int] = set()
        for i in range(len(view.nodes) - 1, -1, -1):
            if i in differentiated or takes_gradients(view.nodes[i]):
                differentiated.update(view.operands[i])
                illegal.setdefault(i, IllegalReason.DIFFERENTIATED_IN_GRAPH)
        self._refuse_broken_spans(view, illegal)
        return illegal

    def _illegal_alone(self, node: Node, writes: bool) -> IllegalReason | None:
        if is_bracket(node):
            return None
        if node not in self._state_of_node or operator_class(node) is not OperatorClass.PURE:
            return IllegalReason.UNKNOWN_TARGET
        if not self._is_ambient[self._state_of_node[node]]:
            return IllegalReason.OTHER_STATE
        if draws_random_numbers(node):
            return IllegalReason.RANDOM
        if writes and writes_a_list(node):
            return IllegalReason.WRITES_A_LIST
        value = node.meta.get("example_value")
        if value is None and not writes:
            return IllegalReason.NO_RESULT
        leaves = value if isinstance(value, (tuple, list)) else (value,)
        # Sizes may be computed inside; the boundary rules keep them there.
        if node.users and not all(isinstance(v, (torch.Tensor, torch.SymInt, int)) for v in leaves):
            return IllegalReason.NOT_A_TENSOR_OR_SIZE
        return None

    @staticmethod
    def _refuse_broken_spans(view: GraphView, illegal: dict[int, IllegalReason]) -> None:
        """Makes illegal the members of each span that no region can hold as a whole."""
        pending = view.spans
        while True:
            # counted[i]: how many illegal nodes there are before position i.
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


class _Finder:
    """Chooses region groups: matches repeats, fits them, checks their boundary, round by round."""

    def __init__(self, view: GraphView, sequence: list[int], stats: Stats, least_saved: int) -> None:
        self.view = view
        self.benefit = RepeatBenefit(least_saved)
        self.fitter = Fitter(view, self.benefit)
        self.sequence = sequence
        self.stats = stats
        # 1 for each position that is in a chosen region.
        self.taken = bytearray(len(sequence))

    def find(self) -> list[Repeat]:
        chosen: list[Repeat] = []
        for self.stats.rounds in range(1, MAX_ROUNDS + 1):
            before = len(chosen)
            for repeat in self._candidates():
                free = tuple(s for s in repeat.starts if self._is_free(s, s + repeat.length))
                if self.benefit.of_runs(repeat.length, len(free)):
                    for group in self.fitter.settle(self._fit(repeat.length, free)):
                        self._take(group)
                        chosen.append(group)
            if len(chosen) == before:
                break
        chosen.sort(key=lambda g: -nodes_saved(g.length, len(g.starts)))
        self.stats.groups = len(chosen)
        self.stats.regions = sum(len(g.starts) for g in chosen)
        self.stats.outlined = sum(self.taken)
        return chosen

    def _candidates(self) -> list[Repeat]:
        """Repeats of what is left, in positions of the whole sequence."""
        # What cannot repeat (or is taken) ends a run; one end is enough between two runs.
        count: dict[int, int] = defaultdict(int)
        for i, number in enumerate(self.sequence):
            if not self.taken[i]:
                count[number] += 1
        packed: list[int] = []
        origin: list[int] = []
        own = itertools.count(-1, -1)
        for i, number in enumerate(self.sequence):
            if not self.taken[i] and count[number] > 1:
                packed.append(number)
            elif packed and packed[-1] >= 0:
                packed.append(next(own))
            else:
                continue
            origin.append(i)
        if not packed:
            return []
        return [Repeat(r.length, tuple(origin[s] for s in r.starts)) for r in find_repeats(packed)]

    def _is_free(self, start: int, end: int) -> bool:
        return self.taken.find(1, start, end) < 0

    def _take(self, group: Repeat) -> None:
        for start in group.starts:
            self.taken[start : start + group.length] = b"\1" * group.length

    def _slack(self, length: int, starts: tuple[int, ...], step: int) -> int:
        """How many more nodes are equal in all runs before (step -1) or after (1) them."""
        edges = [s - 1 if step < 0 else s + length for s in starts]
        bound = length  # further is another rotation of the same
        for moved in range(bound):
            first = edges[0] + step * moved
            if not 0 <= first < len(self.sequence):
                return moved
            number = self.sequence[first]
            for edge in edges:
                at = edge + step * moved
                if not 0 <= at < len(self.sequence) or self.sequence[at] != number or self.taken[at]:
                    return moved
        return bound

    def _fit(self, length: int, starts: tuple[int, ...]) -> Repeat:
        """The same runs, longer where all can be, and moved to where the fewest values cross.

        A loop's body repeats at any rotation; the one whose boundary is narrowest is the block
        that its author wrote, or a better one.
        """
        before, after = self._slack(length, starts, -1), self._slack(length, starts, 1)
        gap = min((b - a - length for a, b in itertools.pairwise(starts)), default=0)
        left = min(before, gap)
        right = min(after, gap - left)
        length, before, after = length + left + right, before - left, after - right
        starts = tuple(s - left for s in starts)
        width = self.view.live_width

        def crossing(shift: int) -> tuple[int, int]:
            return sum(width[s + shift] for s in starts), abs(shift)

        shift = min(range(-before, after + 1), key=crossing)
        return Repeat(length, tuple(s + shift for s in starts))
