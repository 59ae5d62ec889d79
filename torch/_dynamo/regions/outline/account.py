"""At the end of a frame, what its regions came to: for reports, for torch's trace and logs, and as a warning.

All of it is read off the finished graph, so that it says what is compiled.
"""

from __future__ import annotations

import collections
import json
import logging
from typing import Any

import torch
import torch.fx
from torch._dynamo import config
from torch._dynamo.regions.facts import (
    Body,
    CompileFacts,
    by_function,
    call_as_json,
    details_are_logged,
    facts_of_this_compile,
    log,
)
from torch._dynamo.regions.options import warns
from torch._dynamo.regions.outcomes import Outcome
from torch._dynamo.regions.outline.bodies import INVOKE, is_of_call
from torch._dynamo.regions.outline.no_regions import is_new, warning
from torch._dynamo.regions.source_names import readable
from torch._logging import trace_structured
from torch._logging._internal import trace_log
from torch._ops import HigherOrderOperator


Node = torch.fx.Node

# The number of the chromium trace's track of regions. Dynamo's own track is 0.
TRACK = 1

warning_log = logging.getLogger(__name__)


def location_of(region: list[Node]) -> str:
    """The innermost module that all of a region is in, else file and line of its first operator."""
    first, last = ([path for path, _ in _stack(node)] for node in (region[0], region[-1]))
    inside = [path for path in first if path in last]
    return readable(inside[-1]) if inside else line_of(region[0])


def _stack(node: Node) -> list[tuple[str, Any]]:
    """Names and classes of the modules that a node was recorded in, from the outside."""
    return list(node.meta.get("nn_module_stack", {}).values())


def line_of(node: Node) -> str:
    """File and line of the program at which a node was recorded, "" if they are not known."""
    _, found, place_in_file = (node.stack_trace or "").rpartition('  File "')
    file, _, rest = place_in_file.partition('", line ')
    return f"{file}:{rest.partition(',')[0]}" if found else ""


def account(output: Any, outliner: Any) -> None:
    """Completes the record of the compile whose graph is finished, and publishes it.

    The graph is finished: where this fails, only the record is incomplete.
    """
    try:
        _account(output, outliner)
    except Exception:
        if config.graph_deduplication_lint:
            raise
        warning_log.warning("the record of what regions came to is incomplete", exc_info=True)


def _account(output: Any, outliner: Any) -> None:
    facts = facts_of_this_compile()
    if facts is None:
        return
    code, tracker = output.root_tx.f_code, output.region_tracker
    facts.frame, facts.defined = code.co_name, f"{code.co_filename}:{code.co_firstlineno}"
    facts.flag = bool(config.use_graph_deduplication)
    called = _called(output.graph)
    facts.operators = sum([outliner.sizes.get(name, 0) * n for name, n in called.items()])
    for body in outliner.bodies.values():
        called += _called(body.graph)
    facts.bodies = [
        Body(name, outliner.sizes.get(name, 0), called[name], outliner.found.get(name, []))
        for name in outliner.bodies
        if called[name]
    ]
    _count_others(facts, output.graph, tracker)
    if not facts.bodies and warns():
        facts.warning = warning(facts, output.graph, tracker.left_out)
        if facts.warning and is_new(facts):
            warning_log.warning("%s", facts.warning)
    tracker.left_out = {}
    _publish(facts)


def _called(graph: torch.fx.Graph) -> collections.Counter[str]:
    """How often a graph calls each body."""
    calls = graph.find_nodes(op="call_function", target=INVOKE)
    return collections.Counter([str(node.args[1]) for node in calls])


def _count_others(facts: CompileFacts, graph: torch.fx.Graph, tracker: Any) -> None:
    """Counts the operators of ``graph`` that are in no body, and why."""
    left_out = tracker.left_out
    reasons = []
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or is_of_call(node):
            continue
        facts.operators += tracker.bodies.size(node) if isinstance(node.target, HigherOrderOperator) else 1
        if node in left_out:
            reasons.append(left_out[node]._name_)
    facts.left_out = dict(collections.Counter(reasons))


def _publish(facts: CompileFacts) -> None:
    """Tells torch's structured trace and logs of a record that is complete."""
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": "torch_regions", "encoding": "json"},
        payload_fn=lambda: json.dumps(facts.as_json()),
    )
    if trace_log.handlers:
        for event in events_of(facts):
            _publish_event(event)
    if log.isEnabledFor(10):
        for line in summary(facts):
            log.debug("%s", line)
        if details_are_logged() and facts.left_out:
            log.debug("operators in no region: %s", facts.left_out)


def _publish_event(event: dict[str, Any]) -> None:
    trace_structured("chromium_event", payload_fn=lambda: event, expect_trace_id=False)


def events_of(facts: CompileFacts) -> list[dict[str, Any]]:
    """The calls of regions as events of the chromium trace, behind the name of their track."""
    calls = facts.in_order()
    if not calls:
        return []
    where = {"pid": 0, "tid": TRACK}
    events: list[dict[str, Any]] = [{"name": "thread_name", "ph": "M", **where, "args": {"name": "regions"}}]
    for call in calls:
        said = call_as_json(call)
        kept = {name: said[name] for name in ("outcome", "reason", "miss", "caller", "bodies")}
        events.append(
            {
                "name": f"{call.function} {said['path']}".rstrip(),
                "cat": "regions",
                "ph": "X",
                "ts": call.began / 1000,
                "dur": call.seconds * 1e6,
                **where,
                "args": {**kept, "compile_id": facts.compile_id},
            }
        )
    return events


def summary(facts: CompileFacts) -> list[str]:
    """One line a region: what became of its calls, and what that saves."""
    lines = []
    bodies = {body.name: body for body in facts.bodies}
    for (function, automatic), calls in by_function(facts.calls).items():
        counted = collections.Counter(call.outcome for call in calls)
        what = [f"{counted[outcome]} {outcome.value}" for outcome in Outcome if counted[outcome]]
        why = collections.Counter(
            reason.name for call in calls for reason in (call.reason, call.miss) if reason is not None
        )
        names = dict.fromkeys(name for call in calls for name in call.bodies)
        saved = sum(bodies[name].saved for name in names if name in bodies)
        what += [f"{len(names)} bodies, {saved} operators saved"] if names else []
        what += [f"{name} ({n})" for name, n in why.items()]
        kind = " (automatic)" if automatic else ""
        lines.append(f"{function}{kind}: {len(calls)} calls: {', '.join(what)}")
    for body in facts.bodies:
        if body.found:
            where = f"{body.calls} calls of {body.operators} operators, {body.saved} saved"
            lines.append(f"{body.name} (found in the graph): {where}, first at {body.found[0]}")
    return lines
