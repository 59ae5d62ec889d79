"""What a process that `explain` runs writes while it compiles: each record and each metric once, however many there are."""

import json
import threading

import pytest
import torch
import torch._dynamo
from testing.reported_programs import Layers, compiled_once
from torch._dynamo.regions.facts import CompileFacts, _kept, forget_facts
from torch._dynamo.utils import clear_compilation_metrics

from torch_regions._report import collect
from torch_regions._report.record import Recorder, read


@pytest.fixture(autouse=True)
def fresh():
    forget_facts()
    clear_compilation_metrics()
    yield
    forget_facts()


def kinds(folder):
    (file,) = folder.glob("*.jsonl")
    return [next(iter(json.loads(line))) for line in file.read_text().splitlines()]


def test_what_was_written_is_not_made_json_again(tmp_path, monkeypatch):
    """With n compiles, n records are made JSON, not n * n / 2."""
    made = []
    as_json = collect.record_as_json
    monkeypatch.setattr(collect, "record_as_json", lambda record: made.append(record) or as_json(record))
    recorder = Recorder(str(tmp_path))
    for k in range(50):
        _kept.append(CompileFacts(f"{k}/0", "MainThread", k, operators=1))
        recorder.write()
        recorder.write()
    assert len(made) == 50
    assert kinds(tmp_path) == ["process", *["record"] * 50]


def test_each_metric_is_written_once(tmp_path):
    recorder = Recorder(str(tmp_path))
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        for _ in range(3):
            compiled_once(Layers([0.1] * 3))
            recorder.write()
            recorder.write()
    assert sorted(kinds(tmp_path)) == ["metric"] * 3 + ["process"] + ["record"] * 3
    (process,) = read(str(tmp_path))
    assert [len(compiled["calls"]) for compiled in process["compiles"]] == [3, 3, 3]


def test_a_record_that_was_written_while_its_compile_went_on_is_one_compile(tmp_path):
    """Another thread ends a compile meanwhile: the record in the file is not complete, and comes again."""
    recorder = Recorder(str(tmp_path))
    record = CompileFacts("0/0", "another", 1)
    _kept.append(record)
    thread = threading.Thread(target=recorder.write)
    thread.start()
    thread.join()
    record.frame, record.operators = "forward", 7
    recorder.finish()
    (process,) = read(str(tmp_path))
    assert [(each["frame"], each["operators"]) for each in process["compiles"]] == [("forward", 7)]
