"""Finds which regions of a graph are identical, and which of these graph_deduplication is to outline.

While Dynamo traces, ``track_node`` notes the global state under which each operator is recorded, and
``track_node_mutations`` the operands that it wrote.

``get_identical_regions`` returns identical regions by stock's contract: Note [Identical regions] in
regions/outline/identical.py. ``find_groups`` returns the regions that the dedupe pass is to outline. Each of its steps
is in a module of its own:

1. classify   which nodes may be in a region                     regions/outline/legality.py
2. identify   equal keys for nodes that mean the same            regions/keys.py
3. match      repeated runs of keys in program order             regions/outline/repeats.py
4. fit        equal wiring, and no boundary rule broken          regions/outline/fit.py, graph_view.py
5. judge      best extent and rotation, and what pays            regions/outline/find.py, policy.py

A region is a run of consecutive operators, see Note [Regions are intervals of program order].
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import types
from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch._logging
import torch.fx
from torch._dynamo.regions.keys import NodeIdentity, Unkeyable, node_storages
from torch._dynamo.regions.outline.bodies import Bodies, is_of_call
from torch._dynamo.regions.outline.copies import Copied, may_be_written
from torch._dynamo.regions.outline.draws import seeds_only
from torch._dynamo.regions.outline.find import Finder
from torch._dynamo.regions.outline.fit import Fitter
from torch._dynamo.regions.outline.graph_view import GraphView, inputs_of
from torch._dynamo.regions.outline.identical import identical_runs
from torch._dynamo.regions.outline.islands import autocasts_of
from torch._dynamo.regions.outline.legality import IllegalReason, NodeState, illegal_nodes
from torch._dynamo.regions.outline.policy import IN_GRAPH, OutliningPolicy
from torch._ops import HigherOrderOperator
from torch.fx.operator_facts import written_operands
from torch.utils._ambient_state import (
    ambient_state,
    attention_choice,
    autocasts_in,
    global_state_key,
    other_choices,
)
from torch.utils._ordered_set import OrderedSet


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


Node = torch.fx.Node
Region = list[Node]
GlobalStateKey = tuple[Hashable, ...]

log = logging.getLogger(__name__)
graph_expansion_log = torch._logging.getArtifactLogger(__name__, "graph_region_expansion")


def get_global_state_key() -> GlobalStateKey:
    """The present global state that affects what an operator does, as a hashable value."""
    return global_state_key()


@dataclasses.dataclass
class Stats:
    """Counters of one pass."""

    operators: int = 0
    illegal: dict[IllegalReason, int] = dataclasses.field(default_factory=lambda: defaultdict(int))
    rounds: int = 0
    groups: int = 0
    regions: int = 0
    outlined: int = 0  # operators in regions


class Group(NamedTuple):
    """Identical regions, and their meaning."""

    regions: list[Region]
    meaning: Hashable


def meaning(view: GraphView, sequence: list[int], start: int, length: int) -> Hashable:
    """Equal for two runs, in any graphs with the same ``numbers``, iff one body serves both."""
    end = start + length
    return tuple(sequence[start:end]), view.signature(start, end)


class GraphRegionTracker:
    """Tracks the nodes of one Dynamo output graph and finds its repeated regions."""

    def __init__(self) -> None:
        # node -> number of the global state under which it was recorded.
        self._state_of_node: dict[Node, int] = {}
        # node -> code and offset of the program's instruction that recorded it.
        self._instruction_of_node: dict[Node, tuple[types.CodeType, int | None]] = {}
        # global state -> its number. A frame has few different states.
        self._state_numbers: dict[GlobalStateKey, int] = {}
        # The global state in which the frame began, and the attention kernels that it enables.
        self._began_with = global_state_key()
        self._attention_kernels = frozenset(kernel.name for kernel in torch.nn.attention._cur_sdpa_kernel_backends())
        # Whether a region may hold switches of global state, lie where the program has entered autocast, and draw.
        self.switches = True
        # node -> indices, among the nodes of its flattened args and kwargs, of those that its run on fake tensors
        # changed.
        self.node_to_mutated_arg_positions: dict[Node, OrderedSet[int]] = {}
        # The graph whose inputs a region may write to, if any: Note [A region may write to an input].
        self.open_graph: torch.fx.Graph | None = None
        # Which of them a region writes to a copy of, where it does: Note [A body writes to a copy].
        self.copied: Copied | None = None
        self.began_with_grad = torch.is_grad_enabled()
        # Bodies that operators of the frame run: Note [An operator that runs its bodies].
        self.bodies = self.bodies_in({})
        self.stats = Stats()
        # Why nodes are in no region, of all graphs of the frame.
        self.left_out: dict[Node, IllegalReason] = {}

    def track_node(self, tx: InstructionTranslatorBase, node: Node) -> None:
        """Notes the instruction that records ``node`` and the global state. Its value need not be known yet."""
        if node not in self._state_of_node:
            # An input exists before anything is computed.
            state = self._began_with if node.op == "placeholder" else global_state_key()
            self._state_of_node[node] = self._state_numbers.setdefault(state, len(self._state_numbers))
            self._instruction_of_node[node] = tx.f_code, tx.instruction_pointer

    def track_node_mutations(
        self,
        node: Node,
        flat_args_kwargs: list[Any],
        id_to_initial_version: dict[int, int],
    ) -> None:
        """Notes the operands whose version counter changed when ``node`` was run.

        ``flat_args_kwargs``: values of the operand nodes, flat; ``id_to_initial_version``: id of such a value -> its
        version before the run.
        """
        for index, value in enumerate(flat_args_kwargs):
            before = id_to_initial_version.get(id(value))
            if before is not None and value._version != before:
                self.add_node_mutation(node, index)

    def add_node_mutation(self, node: Node, arg_pos: int) -> None:
        """Notes that ``node`` writes to its operand at index ``arg_pos``."""
        self.node_to_mutated_arg_positions.setdefault(node, OrderedSet()).add(arg_pos)

    def copy_track(self, node: Node, copy: Node) -> None:
        """Copies what is noted of ``node`` to ``copy``, its counterpart in a body."""
        if node in self._state_of_node:
            self._state_of_node[copy] = self._state_of_node[node]
        if node in self._instruction_of_node:
            self._instruction_of_node[copy] = self._instruction_of_node[node]
        if node in self.node_to_mutated_arg_positions:
            self.node_to_mutated_arg_positions[copy] = self.node_to_mutated_arg_positions[node]

    def written_operands(self, node: Node, bodies: Bodies | None = None) -> list[Node]:
        """Operands that ``node`` writes to, as its operator implies or its run on fake tensors showed.

        An operator that runs ``bodies`` is not run: Dynamo traces the bodies, and they show what it writes to.
        """
        written = written_operands(node)
        if isinstance(node.target, HigherOrderOperator):
            written = written + (bodies or self.bodies).written(node)
        if indices := self.node_to_mutated_arg_positions.get(node):
            operands: list[Node] = []
            torch.fx.map_arg((node.args, node.kwargs), operands.append)
            written = written + [operands[index] for index in indices]
        return written

    def written_inputs(self, region: Region) -> tuple[list[int], list[int]]:
        """Indices of the operands of ``region`` that a body writes to, and of those whose copies it writes to."""
        written = {s for node in region for operand in self.written_operands(node) for s in node_storages(operand)}
        found = [k for k, operand in enumerate(inputs_of(region)) if written.intersection(node_storages(operand))]
        return (found, []) if self.copied is None else ([], found)

    def bodies_in(self, modules: Mapping[str, Any]) -> Bodies:
        """The ``Bodies`` of operators that run a body named in ``modules``."""
        return Bodies(modules, self.view, self._states, self._state_of_node.get, self.written_operands)

    def view(self, graph: torch.fx.Graph, wanted: Iterable[Node] = (), closed: Iterable[Node] = ()) -> GraphView:
        """A ``GraphView`` of ``graph`` in its present state."""
        kernels = self._attention_kernels if self.switches else None
        writable = None
        if graph is self.open_graph:
            writable = self.copied or may_be_written
        return GraphView(
            graph,
            self.written_operands,
            wanted,
            writable,
            closed,
            kernels,
            lambda node: self.bodies.size(node),
        )

    def autocasts_of(self, region: Region) -> list[tuple[Any, ...]]:
        """The autocasts that a body of ``region`` enters: Note [A body enters the autocast of its calls]."""
        return autocasts_of(region[0], autocasts_in(self._began_with)) if self.switches else []

    def get_identical_regions(self, graph: torch.fx.Graph) -> list[list[Region]]:
        """Groups of identical regions of ``graph``, however small; those latest in the graph come first.

        Every group has two regions or more, of two nodes or more. The k-th nodes of the regions of a group correspond:
        the same instruction of the program recorded them under the same global state, on operands of the same metadata.
        A region is in program order, and no node is in two regions. Nodes of ``graph`` that were never tracked are in
        none. Whether a region may be outlined, or is worth it, is not considered.
        """
        view = self.view(graph)
        unknown = {i: IllegalReason.UNKNOWN_TARGET for i, n in enumerate(view.nodes) if n not in self._state_of_node}
        numbers: dict[Hashable, int] = {}
        sequence = self._by_instruction(view, self._numbered(view, numbers, unknown), numbers)
        return [[view.nodes[s : s + r.length] for s in r.starts] for r in identical_runs(view, sequence)]

    @property
    def node_to_duplicates(self) -> dict[Node, list[Node]]:
        """Each tracked node -> all nodes identical to it, itself included, in the order in which they were tracked."""
        identity = NodeIdentity(self.bodies.key)
        alike: dict[Hashable, list[Node]] = defaultdict(list)
        found: dict[Node, list[Node]] = {}
        for node, state in self._state_of_node.items():
            try:
                found[node] = alike[identity.key(node, state), self._instruction_of_node.get(node)]
            except Unkeyable:
                continue
            found[node].append(node)
        return found

    def find_groups(
        self, graph: torch.fx.Graph, numbers: dict[Hashable, int], policy: OutliningPolicy = IN_GRAPH
    ) -> list[Group]:
        """Groups of identical regions that may be outlined and are worth it by ``policy``, with their meaning.

        If ``policy`` judges, the instructions that recorded the nodes do not matter, and the largest saving comes
        first. Otherwise the groups are those of ``get_identical_regions``. ``numbers``: as for ``sequence``.
        """
        self.stats = Stats()
        view = self.view(graph)
        self.stats.operators = sum([size for node, size in zip(view.nodes, view.sizes) if not is_of_call(node)])
        sequence = self.sequence(view, numbers)
        if policy.judges:
            finder = Finder(view, sequence, policy)
            repeats = finder.find()
            self.stats.rounds = finder.rounds
        else:
            sequence = self._by_instruction(view, sequence, numbers)
            fitter = Fitter(view, policy)
            repeats = [fitted for run in identical_runs(view, sequence) for fitted in fitter.settle(run)]
        groups = []
        for repeat in repeats:
            regions = [view.nodes[s : s + repeat.length] for s in repeat.starts]
            groups.append(Group(regions, meaning(view, sequence, repeat.starts[0], repeat.length)))
            graph_expansion_log.debug(
                "region group of %d x %d nodes, first region: %s", len(regions), repeat.length, regions[0]
            )
        self.stats.groups = len(groups)
        self.stats.regions = sum(len(group.regions) for group in groups)
        self.stats.outlined = sum(
            self.bodies.size(node) for group in groups for region in group.regions for node in region
        )
        graph_expansion_log.debug("%s", self.stats)
        return groups

    def sequence(
        self, view: GraphView, numbers: dict[Hashable, int], wanted: Container[int] | None = None
    ) -> list[int]:
        """One integer for each node: that of its key, or a unique negative one if it may not be in a region.

        ``numbers``: key -> its integer, extended here; share it to compare the nodes of several graphs.
        ``wanted``: positions of the nodes that matter, all if None; the others count as illegal.
        """
        illegal = illegal_nodes(view, self._states(), self.bodies.illegal, self.bodies.module)
        return self._numbered(view, numbers, illegal, wanted)

    def _states(self) -> Callable[[Node], NodeState | None]:
        states = [self._compared(state) for state in self._state_numbers]

        def state_of(node: Node) -> NodeState | None:
            number = self._state_of_node.get(node)
            return None if number is None else states[number]

        return state_of

    def _compared(self, state: tuple[Hashable, ...]) -> NodeState:
        began = self._began_with
        same = other_choices(state) == other_choices(began)
        if not self.switches:
            same = ambient_state(state) == ambient_state(began)
        attention = attention_choice(state) == attention_choice(began)
        may_draw = self.switches and seeds_only()
        return NodeState(bool(autocasts_in(state)), attention, same, bool(autocasts_in(began)), may_draw)

    def _numbered(
        self,
        view: GraphView,
        numbers: dict[Hashable, int],
        illegal: dict[int, IllegalReason],
        wanted: Container[int] | None = None,
    ) -> list[int]:
        identity = NodeIdentity(self.bodies.key)
        own = itertools.count(-1, -1)
        sequence = []
        for i, node in enumerate(view.nodes):
            reason = illegal.get(i)
            if reason is None and (wanted is None or i in wanted):
                try:
                    # Dynamo records the pop of a vmap without tracking it, so it has no state.
                    key = identity.key(node, self._state_of_node.get(node))
                    sequence.append(numbers.setdefault(key, len(numbers)))
                    continue
                except Unkeyable as e:
                    reason = illegal[i] = IllegalReason.UNKEYABLE
                    graph_expansion_log.debug("%s has no key: %s", node.name, e)
            if reason is not None:
                self.stats.illegal[reason] += 1
                self.left_out[node] = reason
                graph_expansion_log.debug("%s stays: %s", node.name, reason.value)
            sequence.append(next(own))
        return sequence

    def _by_instruction(self, view: GraphView, sequence: list[int], numbers: dict[Hashable, int]) -> list[int]:
        """``sequence``, with different integers for nodes that different instructions of the program recorded."""
        return [
            number if number < 0 else numbers.setdefault((number, self._instruction_of_node.get(node)), len(numbers))
            for number, node in zip(sequence, view.nodes, strict=True)
        ]
