"""What a frame with regions tells torch's structured trace and logs, and what it costs to note it."""

import json
import logging
import sys

import pytest
import torch
import torch._dynamo
from testing.reported_programs import Layers, compiled_once
from torch._dynamo.regions import facts as facts_module
from torch._dynamo.regions.facts import facts
from torch._dynamo.regions.outline import account
from torch._logging._internal import trace_log


class _Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


@pytest.fixture(autouse=True)
def flag():
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        yield


@pytest.fixture
def trace():
    handler = _Records()
    trace_log.addHandler(handler)
    yield handler.records
    trace_log.removeHandler(handler)


@pytest.fixture
def logged():
    handler = _Records()
    torch._logging.set_logs(hierarchical_compile=True)
    facts_module.log.addHandler(handler)
    yield handler.records
    facts_module.log.removeHandler(handler)
    torch._logging.set_logs()


def test_the_structured_trace_has_the_record_of_each_compile(trace):
    compiled_once(Layers([0.1] * 4))
    ours = [r for r in trace if r.metadata.get("artifact", {}).get("name") == "torch_regions"]
    (record,) = ours
    assert record.metadata["artifact"]["encoding"] == "json"
    assert (record.metadata["frame_id"], record.metadata["frame_compile_id"]) == (0, 0)
    assert json.loads(record.payload) == json.loads(json.dumps(facts()[0].as_json()))


def test_the_log_has_one_line_a_region(logged):
    compiled_once(Layers([0.1, 0.1, 0.1, 0.1, 0.2]))
    lines = [r.getMessage() for r in logged]
    (operators,) = {body.operators for body in facts()[0].bodies}
    assert lines == [
        "Block (automatic): 5 calls: 1 traced, 2 reused, 2 inlined, 1 bodies, "
        f"{2 * operators} operators saved, ARGUMENTS_DIFFER (1), NOT_REPEATED (2), GUARD_FAILS (1)"
    ]


def test_the_log_has_a_line_a_call_where_details_are_asked_for(logged, monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "+hierarchical_compile")
    compiled_once(Layers([0.1, 0.1, 0.1, 0.2]))
    said = "\n".join(r.getMessage() for r in logged)
    assert "GUARD_FAILS: an earlier call read something that is different here" in said
    assert "CONSTANT_MATCH on self.layers[3].scale: 0.2, not 0.1" in said
    assert said.count("Block called from") == 4


def test_what_the_search_finds_has_a_line(logged):
    def f(x):
        for _ in range(4):
            x = (x.sin() @ x.cos() + x.tanh() * 2).relu().exp().neg().sigmoid()
        return x

    torch.compile(f, backend="eager")(torch.ones(4, 4))
    (line,) = [r.getMessage() for r in logged if "found in the graph" in r.getMessage()]
    assert f"first at {__file__}:{f.__code__.co_firstlineno + 2}" in line


def test_where_it_fails_the_compile_does_not(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("account")

    monkeypatch.setattr(account, "_count_others", fail)
    with torch._dynamo.config.patch(graph_deduplication_lint=False):
        model = Layers([0.1] * 4)
        torch.testing.assert_close(compiled_once(model), model(torch.ones(2, 8)))
    with torch._dynamo.config.patch(graph_deduplication_lint=True), pytest.raises(Exception, match="account"):
        compiled_once(Layers([0.1] * 4))


def test_it_costs_less_than_a_hundredth_of_the_calls_of_a_compile(monkeypatch):
    """What is noted when no report is asked for; the calls of Python functions that a compile makes are counted."""
    ours = {facts_module.__file__, account.__file__, sys.modules[account.warning.__module__].__file__}
    counted = {"ours": 0, "all": 0}
    inside = []

    def count(frame, event, argument):
        if event not in ("call", "return"):
            return
        is_ours = frame.f_code.co_filename in ours
        if event == "call":
            counted["all"] += 1
            counted["ours"] += bool(inside) or is_ours
            inside.extend([None] if is_ours else [])
        elif is_ours and inside:
            inside.pop()

    monkeypatch.setattr(trace_log, "handlers", [])  # as in a process that asks for no trace
    compiled_once(Layers([0.1] * 16))  # imports
    for scales in ([0.1] * 16, [k / 16 for k in range(16)]):  # all reused; all refused, with a warning
        counted.update(ours=0, all=0)
        model = torch.compile(Layers(scales), backend="eager")
        torch._dynamo.reset()
        sys.setprofile(count)
        try:
            model(torch.ones(2, 8))
        finally:
            sys.setprofile(None)
        assert 0 < counted["ours"] < 0.01 * counted["all"], counted


def test_the_chromium_trace_has_a_track_of_regions_inside_of_dynamos_events(trace):
    compiled_once(Layers([0.1, 0.1, 0.1, 0.2]))
    events = [json.loads(r.payload) for r in trace if "chromium_event" in r.metadata]
    name, *calls = [event for event in events if event["tid"] == account.TRACK]
    assert (name["ph"], name["name"], name["args"]) == ("M", "thread_name", {"name": "regions"})
    assert [call["name"] for call in calls] == [f"Block self.layers[{k}]" for k in range(4)]
    assert [call["args"]["outcome"] for call in calls] == ["INLINED", "TRACED", "REUSED", "INLINED"]
    assert calls[3]["args"]["miss"] == "GUARD_FAILS"
    (began,) = [
        event["ts"] for event in events if event["tid"] == 0 and event["name"] == "dynamo" and event["ph"] == "B"
    ]
    (ended,) = [
        event["ts"] for event in events if event["tid"] == 0 and event["name"] == "dynamo" and event["ph"] == "E"
    ]
    times = [began, *(t for call in calls for t in (call["ts"], call["ts"] + call["dur"])), ended]
    assert times == sorted(times)


def test_without_calls_of_regions_the_trace_has_no_such_track():
    assert account.events_of(facts_module.CompileFacts("0/0", "a thread", 0)) == []
