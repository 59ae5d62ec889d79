"""Why nothing became of the flag, or of the marks, in a frame that has layers alike: one line for the user.

A frame in which nothing repeats is as the user expects it, and gets no line.  What repeats is read off the graph: calls
of modules of one class whose operators are the same, and checkpoints.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch.fx
from torch._dynamo.regions.facts import CompileFacts, by_function
from torch._dynamo.regions.outcomes import CallOutcome, RegionInlineReason
from torch._dynamo.regions.outline.policy import policy_in
from torch._dynamo.regions.policies import CHECKPOINT
from torch._dynamo.regions.source_names import readable
from torch._dynamo.utils import counters


Node = torch.fx.Node
# Targets of what a call of a body consists of.
_OF_CALLS = {torch.ops.higher_order.invoke_subgraph, operator.getitem}
# Reasons behind which there is one of the operators in the call.
_OF_OPERATORS = {RegionInlineReason.NO_LEGAL_OPERATORS, RegionInlineReason.NOTHING_INSIDE_BOUNDARY}


class _Alike(NamedTuple):
    """Calls that look alike, and why none of them is a region."""

    what: str
    number: int
    reason: str  # the name of a member of an enum
    why: str


def warning(facts: CompileFacts, graph: torch.fx.Graph, left_out: dict[Node, Any]) -> str:
    """What to tell the user of a frame without any body; "" where there is nothing to tell.

    ``left_out``: node -> why it may be in no region.
    """
    left_out = {node: reason for node, reason in left_out.items() if node.target not in _OF_CALLS}
    alike = _called(facts, left_out) or (_in_graph(facts, graph, left_out) if facts.flag else None)
    if alike is None:
        return ""
    return (
        f"{facts.frame} ({facts.defined}): {alike.number} calls of {alike.what} look alike, and none is a region: "
        f"{alike.reason}, {alike.why}. What to do: python -m torch_regions reasons {alike.reason}. "
        "torch._dynamo.config.warn_without_regions = False silences this."
    )


def _called(facts: CompileFacts, left_out: dict[Node, Any]) -> _Alike | None:
    """A function of which several calls were noted, each for a reason that is not in its arguments flat."""
    for (function, automatic), calls in by_function(facts.in_order()).items():
        number = len(calls) + (facts.untried[function] if automatic else 0)
        if number < 2 or any(call.bodies for call in calls):
            continue
        reasons = {call.reason for call in calls} - {None, RegionInlineReason.NOT_REPEATED}
        if reasons and reasons <= _OF_OPERATORS and left_out:
            reason = collections.Counter(left_out.values()).most_common(1)[0][0]
            return _Alike(function, number, reason.name, reason.value)
        if reasons or not automatic:
            return _Alike(function, number, *_reason(calls, number - len(calls)))
    return None


def _reason(calls: Iterable[CallOutcome], untried: int = 0) -> tuple[str, str]:
    """Name and words of the reason that most of ``calls`` have, which are in order.

    ``untried``: calls that came after, and were not tried, for the reason of the last one.
    """
    found: collections.Counter[Any] = collections.Counter()
    example: dict[Any, CallOutcome] = {}
    for call in calls:
        own = call.reason if call.reason is not RegionInlineReason.NOT_REPEATED else None
        if (reason := own or call.miss) is not None:
            found[reason] += 1
            example.setdefault(reason, call)
            last = reason
    if not found:
        return RegionInlineReason.NOT_REPEATED.name, RegionInlineReason.NOT_REPEATED.value
    found[last] += untried
    reason = found.most_common(1)[0][0]
    call = example[reason]
    text = reason.value
    if call.difference is not None:
        here, _, value, old = call.difference
        text = f"{text} ({readable(here)} is {value}, not {old})"
    elif call.miss_detail and reason is call.miss:
        text = f"{text} ({readable(call.miss_detail)})"
    return reason.name, text


def _in_graph(facts: CompileFacts, graph: torch.fx.Graph, left_out: dict[Node, Any]) -> _Alike | None:
    """The largest group of calls that look alike in the graph, if there is a reason why none is a region."""
    members: dict[tuple[Any, str], list[Node]] = collections.defaultdict(list)
    for node in graph.nodes:
        if node.op in ("call_function", "call_method"):
            for path, kind in node.meta.get("nn_module_stack", {}).values():
                members[kind, path].append(node)
            # Around a layer as a rule, so it counts as one. Other operators with bodies are parts of a layer.
            if node.target is CHECKPOINT:
                members[node.target, node.name].append(node)
    groups: dict[Any, list[list[Node]]] = collections.defaultdict(list)
    for (kind, _), nodes in members.items():
        groups[kind, tuple([node.target for node in nodes])].append(nodes)
    for (kind, _), alike in sorted(groups.items(), key=lambda group: -sum(map(len, group[1]))):
        if len(alike) > 1 and _is_large(alike[0]):
            what = getattr(kind, "__qualname__", None) or str(kind)
            same = by_function(facts.in_order()).get((what, True), ())
            calls = [call for call in same if call.miss is not None]
            if calls:
                return _Alike(what, len(alike), *_reason(calls, facts.untried[what]))
            for reason, _ in collections.Counter(_reasons(alike, left_out)).most_common(1):
                return _Alike(what, len(alike), reason.name, reason.value)
    return None


def _is_large(nodes: list[Node]) -> bool:
    return len(nodes) >= policy_in(depth=0).least_length or any(node.target is CHECKPOINT for node in nodes)


def _reasons(alike: list[list[Node]], left_out: dict[Node, Any]) -> Iterator[Any]:
    for nodes in alike:
        for node in nodes:
            if node in left_out:
                yield left_out[node]


# Frames that the user was warned of: where each is defined, and its name.
_told: set[tuple[str, str]] = set()


def is_new(facts: CompileFacts) -> bool:
    """Whether this is the first warning of the frame; the next one is not."""
    key = (facts.defined, facts.frame)
    if key in _told:
        return False
    _told.add(key)
    counters["regions"]["warned: no region"] += 1
    return True
