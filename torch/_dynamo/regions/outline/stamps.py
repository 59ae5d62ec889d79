"""What stamped calls become at the end of a frame: calls of bodies or, if that is impossible, operators again.

A stamped call names no body while the frame is traced, because its body is made from the traced call's operators at the
end of the frame (calls.py). If these become several bodies, or none, the stamp becomes the same sequence of calls and
operators.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch._dynamo.regions.frame import Node, RegionCall, StampedCall
from torch._dynamo.regions.outline.casts import call_shares_cast
from torch._dynamo.regions.outline.draws import use_of
from torch._dynamo.regions.outline.graph_view import GraphView, inputs_of
from torch._dynamo.regions.outline.legality import reads_inference_tensors
from torch._dynamo.regions.outline.names import given_name
from torch._dynamo.regions.outline.outliner import Outliner, call_meta
from torch._dynamo.regions.outline.renaming import Renaming, composed, note_renaming, shares_body
from torch._dynamo.regions.outline.symbols import input_of, is_symbol
from torch._dynamo.regions.renamed import SYMBOLIC, all_renamed, renamed
from torch._higher_order_ops.region_metadata import without_guards
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.operator_facts import is_body, is_switch
from torch.utils._pytree import tree_map_only


if TYPE_CHECKING:
    from torch._dynamo.graph_region_tracker import GraphRegionTracker


def wanted_by_stamps(call: RegionCall) -> set[Node]:
    """Nodes of a traced call whose results are used in one of its stamps."""
    return {node for stamp in call.stamps for node, result in stamp.results.items() if result.users}


def settle_stamps(tracker: GraphRegionTracker, graph: torch.fx.Graph, calls: list[RegionCall]) -> list[RegionCall]:
    """Puts back the stamps that cannot share a body with the traced call; returns the calls made from them.

    A body returns the same values from every call, and each of them that requires grad must reach the backward (Note
    [What may cross the boundary], 4). So if the used results of a stamp differ from the traced call's, the stamp
    becomes a call of its own: the first such stamp of each kind becomes a call, and the others of that kind its stamps.
    Stamps inside a traced call also become calls, because a body's inner calls are cut out of the body like any other.
    """
    stamped = [(call, stamp) for call in _with_inner(calls) for stamp in call.stamps]
    if not stamped:
        return []
    # In program order, so that stamps inside a traced call precede the stamps of that call.
    index = {node: i for i, node in enumerate(graph.nodes)}
    top = set(map(id, calls))
    made = []
    for call, stamp in sorted(stamped, key=lambda pair: index[pair[1].node]):
        if stamp.outer is not None:
            _into_outer(tracker, graph, call, stamp)
        elif id(call) not in top:
            call.stamps.remove(stamp)
            made.append(_as_call(tracker, graph, call, stamp))
    for call, own, kinds in _kinds_of_stamps(tracker, graph, calls):
        call.stamps = kinds.pop(own, []) if own is not None else []
        for live, stamps in kinds.items():
            while stamps:
                made_from = stamps.pop(0)
                new = _as_call(tracker, graph, call, made_from)
                made.append(new)
                if live is not None:
                    new.stamps, stamps = [_of(new, made_from.symbols, stamp) for stamp in stamps], []
    return made


_Live = frozenset[Node] | None


def _kinds_of_stamps(
    tracker: GraphRegionTracker, graph: torch.fx.Graph, calls: list[RegionCall]
) -> list[tuple[RegionCall, _Live, dict[_Live, list[StampedCall]]]]:
    """For each call: which of its values are used, and its stamps by which of theirs are. None: no body is shared."""
    view = tracker.view(graph)
    is_used = use_of(view, calls)
    not_saved = reads_inference_tensors(view)
    has_backward = any(view.needs_grad)
    found = []
    for call in calls:
        inside = set(call.nodes)
        own = _live(view, {n: view.position[n] for n in call.nodes if not n._erased and is_used(n, inside)})
        kinds: dict[_Live, list[StampedCall]] = {}
        for stamp in call.stamps:
            # An operand or result is written in a way that a call may not hide: the operators must be in the graph.
            at = view.position[stamp.node]
            hidden = view.is_in_span(at) or not view.written_at(at) <= view.held_alone(view.operands[at])
            if stamp.symbols:
                hidden = hidden or has_backward or not shares_body(graph, stamp.symbols)
            hidden = hidden or _returns_a_view(view, stamp) or at in not_saved
            hidden = hidden or (at in view.keeping_casts and call_shares_cast(stamp.node, tracker.bodies.module))
            used = {n: view.position[result] for n, result in stamp.results.items() if is_used(result, ())}
            kinds.setdefault(None if hidden else _live(view, used), []).append(stamp)
        found.append((call, own, kinds))
    return found


def _returns_a_view(view: GraphView, stamp: StampedCall) -> bool:
    """Whether the graph returns a result that is a view in the body; see Note [What may cross the boundary], 2."""
    used = ((view.position[node], view.position[result]) for node, result in stamp.results.items() if result.users)
    return any(view.is_returned(result) and view.is_view(node) for node, result in used)


def _live(view: GraphView, used: dict[Node, int]) -> _Live:
    """The keys of ``used``; None if the value at one of the positions requires grad but no gradient reaches it."""
    if any(p >= 0 and view.needs_grad[p] and not view.reaches_backward[p] for p in used.values()):
        return None
    return frozenset(used)


def _with_inner(calls: Iterable[RegionCall]) -> list[RegionCall]:
    found = []
    for call in calls:
        found += [call, *_with_inner(call.inner)]
    return found


def _into_outer(tracker: GraphRegionTracker, graph: torch.fx.Graph, call: RegionCall, stamp: StampedCall) -> None:
    """Makes a stamp inside a traced call an inner call of that call."""
    call.stamps.remove(stamp)
    outer = stamp.outer
    new = _as_call(tracker, graph, call, stamp)
    gone = {stamp.node, *stamp.results.values()}
    becomes = {result: new.came_from[node] for node, result in stamp.results.items()}
    if outer is not None:
        outer.inner.append(new)
    while outer is not None:
        outer.nodes = _replaced(outer.nodes, stamp.node, gone, new.nodes)
        for other in outer.stamps:
            other.results = {becomes.get(node, node): result for node, result in other.results.items()}
        outer = outer.outer


def _replaced(nodes: list[Node], at: Node, gone: set[Node], new: list[Node]) -> list[Node]:
    found: list[Node] = []
    for node in nodes:
        if node is at:
            found += new
        elif node not in gone:
            found.append(node)
    return found


def _as_call(tracker: GraphRegionTracker, graph: torch.fx.Graph, call: RegionCall, stamp: StampedCall) -> RegionCall:
    """Puts a stamp back as a call of its own."""
    stack_trace = stamp.node.stack_trace
    call.own_sizes |= bool(stamp.symbols)
    came_from = put_back(graph, tracker, call, stamp)
    nodes = [came_from[n] for n in call.nodes if n in came_from]
    return dataclasses.replace(
        call,
        stack_trace=stack_trace,
        nodes=nodes,
        inner=[],
        stamps=[],
        ended=True,
        outer=stamp.outer,
        came_from=came_from,
        own_sizes=bool(stamp.symbols),
    )


def _of(new: RegionCall, symbols: Renaming, stamp: StampedCall) -> StampedCall:
    """``stamp``, a stamp of the call from which ``new`` was stamped with ``symbols``, as a stamp of ``new``."""
    results = {new.came_from[node]: result for node, result in stamp.results.items()}
    return dataclasses.replace(stamp, results=results, symbols=composed(symbols, stamp.symbols))


def put_back_all(graph: torch.fx.Graph, calls: list[RegionCall]) -> None:
    """Puts every stamp of ``calls`` back as operators."""
    for call in _with_inner(calls):
        for stamp in call.stamps:
            put_back(graph, None, call, stamp)
        call.stamps.clear()


def put_back(
    graph: torch.fx.Graph, tracker: GraphRegionTracker | None, call: RegionCall, stamp: StampedCall
) -> dict[Node, Node]:
    """Replaces a stamp by copies of the traced call's operators; returns the map from operators to copies."""
    return Replacement(call, {}, tracker).put(graph, stamp)


class Replacement:
    """Replaces the stamps of one traced call by calls of the bodies that the call was cut into, and by copies."""

    def __init__(self, call: RegionCall, pieces: dict[Node, CalledPiece], tracker: GraphRegionTracker | None) -> None:
        """``pieces``: first node of each run that has a body -> how to call it. All other operators are copied."""
        self.tracker = tracker
        # Read now: a node that was a stamp's result while the call was traced has been replaced since.
        self.operands = call.operands
        self.steps: list[Node | CalledPiece] = []
        covered: set[Node] = set()
        for index, node in enumerate(call.nodes):
            if piece := pieces.get(node):
                covered.update(piece.region)
                last = call.nodes.index(piece.region[-1])
                covered.update(each for each in call.nodes[index:last] if each._erased)
                self.steps.append(piece)
            elif node not in covered and (not node._erased or is_switch(node)):
                # Dynamo erases two switches of grad mode that undo each other. One of them may be no part of the call,
                # and a stamp has neighbours of its own.
                self.steps.append(node)

    def put(self, graph: torch.fx.Graph, stamp: StampedCall) -> dict[Node, Node]:
        """Replaces ``stamp``; returns the map from the traced call's nodes to those that replace them.

        Example values are made anew, so that values of two calls share no memory.
        """
        stands_for: dict[Node, Node] = dict(zip(self.operands, stamp.operands, strict=True))
        # The results first: the frame may have given one another memory, also that of an operand.
        values = _Values({**stamp.results, **stands_for}, stamp.symbols)
        given = {node: given_name(result) for node, result in stamp.results.items()}
        with graph.inserting_before(stamp.node):
            for step in self.steps:
                if isinstance(step, CalledPiece):
                    stands_for.update(step.call(graph, stands_for, values, stamp.node.stack_trace, given))
                else:
                    stands_for[step] = self._copy(graph, step, stands_for, values)
        for node, result in stamp.results.items():
            if result.users:
                # The frame may have changed its metadata since, or that of the traced call's.
                stands_for[node].meta["example_value"] = result.meta["example_value"]
                result.replace_all_uses_with(stands_for[node])
            graph.erase_node(result)
        graph.erase_node(stamp.node)
        for step in self.steps:
            # The ``get_attr`` node of an operator's body is unused if the operator itself is now in a body.
            if isinstance(step, torch.fx.Node) and is_body(step) and not stands_for[step].users:
                graph.erase_node(stands_for.pop(step))
        return stands_for

    def _copy(self, graph: torch.fx.Graph, node: Node, stands_for: dict[Node, Node], values: _Values) -> Node:
        copy = graph.node_copy(node, stands_for.__getitem__)
        if "example_value" in node.meta:
            copy.meta["example_value"] = values.like(node.meta["example_value"])
        if self.tracker is not None:
            self.tracker.copy_track(node, copy)
        return copy


@dataclasses.dataclass
class CalledPiece:
    """A run of a traced call's operators that has a body, and how to make another call of this body."""

    region: list[Node]
    indices: list[int]
    name: str
    options: Any
    outliner: Outliner

    @functools.cached_property
    def inputs(self) -> list[Node]:
        """What the run takes from outside; first read when all earlier stamps have been replaced."""
        return inputs_of(self.region)

    def call(
        self,
        graph: torch.fx.Graph,
        stands_for: dict[Node, Node],
        values: _Values,
        stack_trace: str | None,
        given: dict[Node, str | None],
    ) -> dict[Node, Node]:
        """Emits a call where ``graph`` inserts; returns the map from the run's results to the call's.

        ``given``: the program's names of some results.
        """
        if values.symbols:
            note_renaming(values.symbols)
        operands = [values.symbol(graph, node) if is_symbol(node) else stands_for[node] for node in self.inputs]
        nodes = [self.region[index] for index in self.indices]
        metas = [{**node.meta, "example_value": values.like(node.meta["example_value"])} for node in nodes]
        meta = call_meta(self.region[-1], self.options, stack_trace)
        named = [given.get(node) for node in nodes]
        results = self.outliner.call(graph, self.name, operands, metas, meta, named)
        return dict(zip(nodes, results, strict=True))


class _Values:
    """Makes example values of one call from those of another: same metadata, same sharing, other memory."""

    def __init__(self, stands_for: dict[Node, Node], symbols: dict[Any, Any]) -> None:
        """``symbols``: symbol of the one call -> symbol of the other one."""
        self.symbols = symbols
        # storage in the traced call -> its counterpart in this call, and how much further on values begin in that:
        # the operands of two calls may be views of one tensor. See Note [A body does not see storage offsets].
        self._storages: dict[int, tuple[Any, Any]] = {}
        for node, other in stands_for.items():
            one, two = node.meta.get("example_value"), other.meta.get("example_value")
            if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
                self._storages[one.untyped_storage()._cdata] = two.untyped_storage(), self._moved(one, two)

    def _moved(self, one: torch.Tensor, two: torch.Tensor) -> Any:
        if type(one) is not FakeTensor or type(two) is not FakeTensor:
            return 0
        begins, other = one.storage_offset(), two.storage_offset()
        if type(begins) is int and type(other) is int:
            return other - begins
        with without_guards(two.fake_mode):
            return other - renamed(begins, self.symbols)

    def symbol(self, graph: torch.fx.Graph, given: Node) -> Node:
        """The input of ``graph`` that this call takes where the other one takes ``given``, which is a symbol."""
        symbol = given.meta["example_value"].node.expr
        return input_of(graph, self.symbols[symbol]) or given if symbol in self.symbols else given

    def like(self, value: Any) -> Any:
        if self.symbols:
            value = tree_map_only(SYMBOLIC, lambda number: renamed(number, self.symbols), value)
        return tree_map_only(FakeTensor, self._tensor, value)

    def _tensor(self, value: FakeTensor) -> torch.Tensor:
        try:
            # On the meta device, because each of these steps is a hundred times slower under the fake mode.
            with torch.no_grad(), without_guards(value.fake_mode):
                sizes, strides = (all_renamed(n, self.symbols) for n in (value.shape, value.stride()))
                offset = renamed(value.storage_offset(), self.symbols)
                old = value.untyped_storage()
                if old._cdata not in self._storages:
                    whole = torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
                    self._storages[old._cdata] = whole.untyped_storage(), 0
                storage, moved = self._storages[old._cdata]
                made = torch.empty(0, dtype=value.dtype, device="meta")
                made.set_(storage, offset + moved, sizes, strides)
                fake = FakeTensor(value.fake_mode, made, value.device, constant=value.constant)
            return fake.requires_grad_(value.requires_grad)
        except Exception:
            # An unusual tensor keeps the other call's value. It seems to share memory with that call, so it stays
            # outside.
            return value
