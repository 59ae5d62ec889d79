"""What is recorded of each compile: its frame, calls, bodies and reasons, whatever becomes of the frame."""

import threading

import torch
import torch._dynamo
from testing.reported_programs import Block, Layers, compiled_once
from torch._dynamo.regions import facts as facts_module
from torch._dynamo.regions.facts import facts
from torch._dynamo.utils import counters, get_compilation_metrics


region = torch.compiler.nested_compile_region


def _flagged():
    return torch._dynamo.config.patch(use_graph_deduplication=True)


def _calls(record):
    return [(call["path"], call["outcome"], call["bodies"]) for call in record.as_json()["calls"]]


def test_calls_are_in_the_order_of_the_program_with_their_bodies():
    with _flagged():
        compiled_once(Layers([0.1] * 4))
    (record,) = facts()
    assert _calls(record) == [
        ("self.layers[0]", "INLINED", []),  # its input requires no gradient
        ("self.layers[1]", "TRACED", ["subgraph_0"]),
        ("self.layers[2]", "REUSED", ["subgraph_0"]),
        ("self.layers[3]", "REUSED", ["subgraph_0"]),
    ]
    assert (record.frame, record.flag) == ("forward", True)
    assert record.defined == f"{Layers.forward.__code__.co_filename}:{Layers.forward.__code__.co_firstlineno}"
    assert {call.defined for call in record.calls} == {
        f"{Block.forward.__code__.co_filename}:{Block.forward.__code__.co_firstlineno}"
    }


def test_bodies_are_what_the_counters_say():
    counters.clear()
    with _flagged():
        compiled_once(Layers([0.1] * 6))
    (record,) = facts()
    (body,) = record.bodies
    counted = counters["graph_deduplication"]
    assert (1, body.calls) == (counted["bodies"], counted["calls"])
    assert body.operators * body.calls == counted["operators_outlined"]
    assert body.saved == body.operators * (body.calls - 1)
    assert record.operators == 6 * body.operators


def test_what_the_search_finds_has_its_places():
    def f(x):
        for _ in range(4):
            x = (x.sin() @ x.cos() + x.tanh() * 2).relu().exp().neg().sigmoid()
        return x

    with _flagged():
        torch.compile(f, backend="eager")(torch.ones(4, 4))
    (record,) = facts()
    assert not record.calls
    (body,) = record.bodies
    line = f.__code__.co_firstlineno + 2
    assert body.found == [f"{__file__}:{line}"] * body.calls
    assert body.calls > 1


def test_a_miss_says_what_differs():
    with _flagged():
        compiled_once(Layers([0.1, 0.1, 0.2, 0.2]))
    (record,) = facts()
    missed = [call for call in record.as_json()["calls"] if call["miss"] == "GUARD_FAILS"]
    differs = {"here": "self.layers[2].scale", "earlier": "self.layers[1].scale", "value": "0.2", "old": "0.1"}
    assert [call["differs"] for call in missed] == [differs]


def test_each_compile_of_a_frame_has_its_record():
    model = Layers([0.1] * 3)
    with _flagged():
        compiled_once(model)
        compiled_once(model.eval(), reset=False)
    assert [record.compile_id for record in facts()] == ["0/0", "0/1"]
    assert [len(record.calls) for record in facts()] == [3, 3]


def test_a_record_is_of_its_own_after_a_reset():
    with _flagged():
        compiled_once(Layers([0.1] * 3))
        compiled_once(Layers([0.1] * 3))
    assert [(record.compile_id, len(record.calls)) for record in facts()] == [("0/0", 3), ("0/0", 3)]


def test_a_graph_break_leaves_a_record_for_each_part():
    @region
    def breaks(x):
        torch._dynamo.graph_break()
        return x.cos()

    @region
    def plain(x):
        return x.sin() + 1

    def f(x):
        return plain(plain(breaks(plain(plain(x)))))

    torch._dynamo.reset()
    torch.compile(f, backend="eager")(torch.ones(3))
    first, *others = facts()
    # The attempt that comes to the break is made anew: what was recorded of the other calls counts once.
    assert [call.reason and call.reason.name for call in first.calls] == ["GRAPH_BREAK", None, None]
    assert {record.compile_id for record in facts()} == {"0/0", *(record.compile_id for record in others)}
    assert [call.outcome.name for record in others for call in record.calls if call.function.endswith("plain")] == [
        "REUSED",
        "TRACED",
    ]


def test_threads_have_records_of_their_own():
    def work():
        with _flagged():  # options are those of a thread
            torch.compile(Layers([0.1] * 4), backend="eager")(torch.ones(2, 8))

    threads = [threading.Thread(target=work, name=f"compiles {k}") for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Which of the two compiles is a race: Dynamo has one cache for the code of both.
    assert {record.thread for record in facts()} <= {"compiles 0", "compiles 1"}
    assert all(len(record.calls) == 4 for record in facts())
    assert facts()


def test_a_record_is_made_while_its_compile_runs():
    with _flagged():
        compiled_once(Layers([0.1] * 3))
    (record,) = facts()
    metric = get_compilation_metrics()[-1]
    assert metric.start_time_us <= record.at // 1000 <= metric.start_time_us + metric.duration_us


def test_without_flag_and_mark_there_is_no_record():
    compiled_once(Layers([0.1] * 4))
    assert not facts()


def test_not_more_than_so_many_are_kept(monkeypatch):
    kept = type(facts_module._kept)(maxlen=2)
    monkeypatch.setattr(facts_module, "_kept", kept)
    with _flagged():
        for _ in range(3):
            compiled_once(Layers([0.1] * 3))
    assert len(facts()) == 2
