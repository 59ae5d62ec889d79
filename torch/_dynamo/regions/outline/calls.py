"""Cuts the noted calls of regions out of a finished graph: each becomes a call of a body.

The steps are applied to the outermost calls of a graph first, then to the calls inside each body:

1. The operators of a call that are legal (legality.py) form runs. Illegal operators between them stay where they are.
2. Runs of equal keys and wiring share a body. A node whose value may not cross the boundary (graph_view.py) is left out
   of all of them (fit.py).
3. Each run is replaced by a call, in place (outliner.py). If no run of a call can be replaced, the call stays flat, and
   its inner calls are tried instead.

Postcondition: that of outliner.py; in addition, every call has an outcome.
"""

from __future__ import annotations

import bisect
import dataclasses
import logging
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

import torch.fx
from torch._dynamo import config
from torch._dynamo.graph_deduplication import outline_repeats
from torch._dynamo.graph_region_tracker import GraphRegionTracker, Node, Region, meaning
from torch._dynamo.regions.frame import RegionCall
from torch._dynamo.regions.outcomes import Outcome, RegionInlineReason
from torch._dynamo.regions.outline.draws import note_reads
from torch._dynamo.regions.outline.fit import Fitter
from torch._dynamo.regions.outline.names import given_name, name_anew
from torch._dynamo.regions.outline.outliner import Outliner, make_body, used_outside
from torch._dynamo.regions.outline.policy import policy_in
from torch._dynamo.regions.outline.repeats import Repeat
from torch._dynamo.regions.outline.stamps import CalledPiece, Replacement, put_back_all, settle_stamps, wanted_by_stamps
from torch._dynamo.utils import counters


log = logging.getLogger(__name__)


def cut_out_calls(
    graph: torch.fx.Graph, calls: list[RegionCall], outliner: Outliner, refused: RegionInlineReason | None
) -> None:
    """Replaces ``calls``, the outermost calls noted in ``graph``, in place: by operators if ``refused`` says why."""
    if refused is not None:
        put_back_all(graph, calls)
        for call in calls:
            _end(call, refused)
    elif calls:
        _Cutter(outliner).cut(graph, calls)
        if outliner.bodies:
            name_anew(graph, outliner.given)


class CallBenefit:
    """The ``Benefit`` of noted calls: a call of a region is made whatever it saves.

    A run must still have ``least_length`` operators, so that a short rest of a region does not become a call.
    """

    least_calls = 1

    def __init__(self, whole: int, automatic: bool) -> None:
        least = policy_in(depth=0).least_length
        self.least_length = least if automatic else min((whole + 1) // 2, least)

    def of_runs(self, length: int, calls: int) -> bool:
        return length >= self.least_length

    def of_group(self, length: int, calls: int, results: int) -> bool:
        return self.of_runs(length, calls)


class _Like(NamedTuple):
    """What runs must have in common before their wiring is compared."""

    keys: tuple[int, ...]
    # id of the options of the calls. A body compiled with other options is another body.
    options: int
    # Number of operators in the whole call; ``CallBenefit`` depends on it.
    whole: int
    automatic: bool


class _Piece(NamedTuple):
    """Regions that share a body, and the calls that they are parts of, in the same order."""

    regions: list[Region]
    calls: list[RegionCall]
    # Equal for two pieces, of any graphs of the frame, iff one body serves both.
    meaning: Hashable


class _Cutter:
    """Cuts calls out of the graph of a frame, then out of the bodies made from it."""

    def __init__(self, outliner: Outliner) -> None:
        self.tracker = outliner.tracker
        self.outliner = outliner

    def cut(self, graph: torch.fx.Graph, calls: Iterable[RegionCall], depth: int = 0) -> None:
        """Cuts ``calls`` out of ``graph``, which is a body inside ``depth`` others."""
        here = []
        for call in calls:
            if call.graph is graph:
                here.append(call)
            else:
                _end(call, RegionInlineReason.INSIDE_HIGHER_ORDER_OP)
        while here:
            try:
                here += settle_stamps(self.tracker, graph, here)
                plan = _Plan(self, graph, here)
                pieces, flat = plan.pieces()
            except Exception:
                if config.graph_deduplication_lint:
                    raise
                # The flat graph is correct, and planning has not changed it.
                log.warning("the calls of regions stay flat: planning failed", exc_info=True)
                put_back_all(graph, here)
                for call in here:
                    _end(call, RegionInlineReason.FAILED)
                return
            self._outline(graph, pieces, here, depth)
            kept: dict[int, list[int]] = defaultdict(list)
            for piece in pieces:
                for call in piece.calls:
                    kept[id(call)].append(len(piece.regions[0]))
            for call in here:
                if lengths := kept.get(id(call)):
                    call.end(Outcome.TRACED, detail=f"bodies of {lengths} operators")
                    for inner in call.inner:
                        _end_inside(inner)
            for call, reason in flat:
                call.end(Outcome.INLINED, reason)
            here = [inner for call, _ in flat for inner in call.inner]

    def _outline(self, graph: torch.fx.Graph, pieces: list[_Piece], calls: list[RegionCall], depth: int) -> None:
        """Makes the bodies of ``pieces``, then replaces ``calls`` and their stamps by calls of these bodies."""
        ready = []
        called: dict[int, dict[Node, CalledPiece]] = defaultdict(dict)
        for piece in pieces:
            wanted = {node for call in piece.calls for node in wanted_by_stamps(call)}
            indices = used_outside(piece.regions, wanted)
            name = self._body(graph, piece, indices, depth)
            for call in piece.calls:
                call.bodies.append(name)
            options = piece.calls[0].options
            ready.append((piece, indices, name))
            for region, call in zip(piece.regions, piece.calls, strict=True):
                called[id(call)][region[0]] = CalledPiece(region, indices, name, options, self.outliner)
        for call in calls:
            stamps = len(call.stamps)
            if stamps:
                replacement = Replacement(call, called.get(id(call), {}), self.tracker)
                for stamp in call.stamps:
                    replacement.put(graph, stamp)
                call.stamps.clear()
            if call.automatic:
                _count(self.tracker, called.get(id(call), {}).values(), 1 + stamps)
        for piece, indices, name in ready:
            called_at = [call.stack_trace for call in piece.calls]
            self.outliner.replace(graph, piece.regions, indices, name, piece.calls[0].options, called_at)

    def _body(self, graph: torch.fx.Graph, piece: _Piece, indices: list[int], depth: int) -> str:
        """Returns the name of the body of ``piece`` that returns ``indices``, and makes the body if none exists."""
        # AOTAutograd does not find a body that a graph calls both directly and from inside another body.
        whole = (piece.meaning, tuple(indices), depth)
        autocasts = self.tracker.autocasts_of(piece.regions[0])
        written, copied = self.tracker.written_inputs(piece.regions[0])
        body, copies = make_body(piece.regions[0], indices, copied, called=True, autocasts=autocasts)
        self.outliner.check(graph, piece.regions, indices, body)
        name = self.outliner.names.get(whole)
        if name is None:
            inside = self.outliner.inside
            for node in piece.regions[0]:
                self.tracker.copy_track(node, copies[node])
                if (named := inside.get(node)) is not None:
                    inside[copies[node]] = named
                    self.outliner.given[copies[node]] = given_name(node, named)
            first = piece.calls[0]
            if not (written or copied):  # Note [A region may write to an input]
                self.cut(body, [_inside(inner, first, body, copies) for inner in first.inner], depth + 1)
                if config.use_graph_deduplication:
                    outline_repeats(self.outliner, body, depth + 1)
            name_anew(body, self.outliner.given)
            name = self.outliner.install(whole, body, written, copied, first.options)
            self.outliner.note_size(name, piece.regions[0])
            counters["graph_deduplication"]["bodies"] += first.automatic
        return name


class _Plan:
    """Decides, without changing anything, which runs of a graph's calls become which bodies."""

    def __init__(self, cutter: _Cutter, graph: torch.fx.Graph, calls: list[RegionCall]) -> None:
        self.calls = calls
        wanted_nodes = [node for call in calls for node in wanted_by_stamps(call)]
        closed = [n for call in calls if _has_marked(call) for n in call.nodes if not n._erased]
        self.view = cutter.tracker.view(graph, wanted_nodes, closed)
        note_reads(self.view, calls)
        # call -> positions of its operators, ascending.
        self.positions = {id(call): self._positions(call) for call in calls}
        wanted = {p for positions in self.positions.values() for p in positions}
        self.sequence = cutter.tracker.sequence(self.view, cutter.outliner.numbers, wanted)

    def _positions(self, call: RegionCall) -> list[int]:
        # Dynamo erases nodes at the end of a frame; an erased one has no position.
        return sorted(p for n in call.nodes if (p := self.view.position.get(n, -1)) >= 0)

    def pieces(self) -> tuple[list[_Piece], list[tuple[RegionCall, RegionInlineReason]]]:
        """The pieces to outline, and the calls that have no piece, each with its reason."""
        by_keys: dict[_Like, list[tuple[int, RegionCall]]] = defaultdict(list)
        flat: dict[int, RegionInlineReason] = {}
        for call in self.calls:
            positions = self.positions[id(call)]
            runs = list(self._legal_runs(positions))
            if not positions:
                flat[id(call)] = RegionInlineReason.NO_OPERATORS
            elif not runs:
                flat[id(call)] = RegionInlineReason.NO_LEGAL_OPERATORS
            for start, end in runs:
                whole = sum(self.view.sizes[p] for p in positions)
                like = _Like(tuple(self.sequence[start:end]), id(call.options), whole, call.automatic)
                by_keys[like].append((start, call))
        pieces = []
        kept: set[int] = set()
        for like, members in by_keys.items():
            owner = dict(members)
            run = Repeat(len(like.keys), tuple(sorted(owner)))
            for repeat in Fitter(self.view, CallBenefit(like.whole, like.automatic)).settle(run):
                piece = self._piece(repeat, owner, like.options)
                if like.automatic and not _is_stamped(piece.calls):
                    for call in piece.calls:
                        flat.setdefault(id(call), _why_alone(call))
                    continue
                pieces.append(piece)
                kept.update(map(id, piece.calls))
        for call in self.calls:
            if id(call) not in kept:
                flat.setdefault(id(call), RegionInlineReason.NOTHING_INSIDE_BOUNDARY)
        return pieces, [(call, flat[id(call)]) for call in self.calls if id(call) not in kept]

    def _legal_runs(self, positions: list[int]) -> Iterator[tuple[int, int]]:
        """Ranges of consecutive positions that may all be in a body."""
        start = end = -1
        for p in positions:
            legal = self.sequence[p] >= 0
            if p != end or not legal:
                if end > start:
                    yield start, end
                start = p
            end = p + 1
            if not legal:
                start = end
        if end > start:
            yield start, end

    def _piece(self, repeat: Repeat, owner: dict[int, RegionCall], options: int) -> _Piece:
        starts = repeat.starts
        begins = sorted(owner)
        calls = [owner[begins[bisect.bisect_right(begins, s) - 1]] for s in starts]
        regions = [self.view.nodes[s : s + repeat.length] for s in starts]
        return _Piece(regions, calls, (meaning(self.view, self.sequence, starts[0], repeat.length), options))


def _inside(call: RegionCall, outer: RegionCall, body: torch.fx.Graph, copies: dict[Node, Node]) -> RegionCall:
    """``call``, which is made inside the region's call ``outer``, as a call in the region's body."""
    ended, call.ended = call.ended, True  # from here on, the returned call takes the outcome
    return dataclasses.replace(
        call,
        key=None,
        graph=body if call.graph is outer.graph else None,
        nodes=[copies[n] for n in call.nodes if n in copies],
        inner=[_inside(inner, call, body, copies) for inner in call.inner],
        outer=None,
        stamps=[],
        ended=ended,
        reused=False,
        run=None,
    )


def _count(tracker: GraphRegionTracker, pieces: Iterable[CalledPiece], calls: int) -> None:
    """Adds the calls of automatic regions to the counters of the flag's search."""
    counted = counters["graph_deduplication"]
    for piece in pieces:
        counted["calls"] += calls
        for counter in ("operators", "operators_outlined"):
            counted[counter] += calls * sum(map(tracker.bodies.size, piece.region))


def _has_marked(call: RegionCall) -> bool:
    """Whether the program marks a region inside ``call``."""
    return any(not inner.automatic or _has_marked(inner) for inner in call.inner)


def _is_stamped(calls: list[RegionCall]) -> bool:
    """Whether one of ``calls`` has stamps, or was itself a stamp, of the same sizes."""
    return any(call.stamps or (call.came_from and not call.own_sizes) for call in calls)


def _why_alone(call: RegionCall) -> RegionInlineReason:
    return RegionInlineReason.OWN_SIZES if call.own_sizes else RegionInlineReason.NOT_REPEATED


def _end_inside(call: RegionCall) -> None:
    """Records that a call and all calls inside it lie in a body made from another call."""
    call.end(Outcome.TRACED, detail="inside the body of another region")
    for inner in call.inner:
        _end_inside(inner)


def _end(call: RegionCall, reason: RegionInlineReason) -> None:
    """Records that a call and all calls inside it stay flat."""
    call.end(Outcome.INLINED, reason)
    for inner in call.inner:
        _end(inner, reason)
