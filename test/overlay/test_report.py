"""`torch_regions.report()`: the data is as the schema says and as the counters count, and the text says it."""

import json
import re
import sys
import threading

import pytest
import torch
import torch._dynamo
from testing.overlay_tools import REPO
from testing.reported_programs import Layers, compiled_once
from torch._dynamo.regions.facts import forget_facts
from torch._dynamo.regions.outcomes import RegionInlineReason, ReuseMissReason
from torch._dynamo.regions.outline.legality import IllegalReason
from torch._dynamo.utils import clear_compilation_metrics, counters
from torch._functorch._aot_autograd import autograd_cache_misses
from torch._inductor.regions.cache import BypassReason

import torch_regions
from torch_regions import cli
from torch_regions._report import advice
from torch_regions._report.collect import OPERATORS_OF_A_CALL, assemble


SCHEMA = json.loads((REPO / "torch_regions" / "_report" / "schema.json").read_text())


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    clear_compilation_metrics()
    forget_facts()
    autograd_cache_misses.forget()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        yield
    torch._dynamo.reset()


def compiles():
    (process,) = torch_regions.report().data["processes"]
    return process["compiles"]


def test_the_data_is_as_the_schema_says():
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: make .venv installs it")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    compiled_once(Layers([0.1, 0.1, 0.1, 0.2], dropout=0.5), "aot_eager").sum().backward()
    data = json.loads(json.dumps(torch_regions.report().data))
    jsonschema.validate(data, SCHEMA)
    data["processes"][0]["compiles"][0]["calls"][0]["outcome"] = "LOST"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)


def test_it_says_what_the_counters_say():
    compiled_once(Layers([0.1] * 6))
    (compiled,) = compiles()
    outcomes = [call["outcome"] for call in compiled["calls"]]
    counted = counters["regions"]
    for name in ("traced", "reused", "inlined"):
        assert outcomes.count(name.upper()) == counted[name]
    (body,) = compiled["bodies"]
    assert (body["calls"], body["operators"] * body["calls"]) == (
        counters["graph_deduplication"]["calls"],
        counters["graph_deduplication"]["operators_outlined"],
    )


def test_each_compile_has_the_times_of_its_stages():
    compiled_once(Layers([0.1] * 3), "aot_eager").sum().backward()
    compiled_once(Layers([0.1] * 3))  # after a reset: the same id
    first, second = compiles()
    assert first["id"] == second["id"]
    assert first["stages"]["trace"] > 0 and first["stages"]["aot_autograd"] > 0
    assert first["began"] < second["began"]


def test_a_metric_belongs_to_the_record_that_was_made_in_its_time():
    record = {"id": "0/0", "calls": [], "left_out": {}, "frame": "f", "defined": "a.py:1"}
    metric = {"id": "0/0", "forward": True, "frame": "f", "defined": "a.py:1", "duration": 10, "times": {}}
    records = [{**record, "at": 1_005_000}, {**record, "at": 2_005_000}]
    metrics = [{**metric, "start": start, "times": {"trace": start}} for start in (2000, 1000)]
    found = assemble({"reasons": {}}, records, metrics, [])["compiles"]
    assert [each["stages"]["trace"] for each in found] == [0.001, 0.002]


def test_a_record_without_a_metric_has_no_stages():
    """A compile that a backend makes beside Dynamo's own, or whose metrics were dropped."""
    record = {"id": "0/0", "calls": [], "left_out": {}, "frame": "f", "defined": "a.py:1", "at": 1_005_000}
    (found,) = assemble({"reasons": {}}, [record], [], [])["compiles"]
    assert found["stages"] == {}


def test_a_recompile_says_why():
    model = Layers([0.1] * 3)
    compiled_once(model)
    compiled_once(model.eval(), reset=False)
    assert [bool(compiled["recompile"]) for compiled in compiles()] == [False, True]
    assert "compiled again: " in str(torch_regions.report())


def test_a_compile_without_flag_and_mark_has_only_its_times():
    with torch._dynamo.config.patch(use_graph_deduplication=False):
        compiled_once(Layers([0.1] * 3))
    (compiled,) = compiles()
    assert (compiled["regions"], compiled["calls"], compiled["frame"]) == (False, [], "forward")
    assert "the flag was off" in str(torch_regions.report())


def test_a_compile_that_fails_says_so():
    def fails(x):
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(fails, backend="eager", fullgraph=True)(torch.ones(2))
    assert "failed: Unsupported" in str(torch_regions.report())


def test_what_the_backend_would_take_longer_goes_by_its_operators_and_calls():
    compiled_once(Layers([0.1] * 12), "aot_eager")
    (compiled,) = compiles()
    (body,) = compiled["bodies"]
    given = compiled["operators"] - body["operators"] * (body["calls"] - 1) + OPERATORS_OF_A_CALL * body["calls"]
    saved = compiled["stages"]["aot_autograd"] * (compiled["operators"] / given - 1)
    assert compiled["backend_saved"] == pytest.approx(saved, abs=1e-5) and saved > 0
    assert "without regions, by estimate, " in str(torch_regions.report())
    compiled_once(Layers([0.1]), "aot_eager")
    assert compiles()[-1]["backend_saved"] == 0


def test_the_text_says_what_differs_and_what_to_do():
    compiled_once(Layers([0.1, 0.1, 0.1, 0.2, 0.2]))
    said = str(torch_regions.report())
    assert "Block (automatic)" in said
    assert "1 not reused (GUARD_FAILS): self.layers[3] called at" in said
    assert "self.layers[3].scale is 0.2, self.layers[1].scale is 0.1" in said
    assert advice.NOT_REUSED["GUARD_FAILS"] in said


class Counting(torch.nn.Module):
    """A layer whose buffer is what an operator in place returns: no region becomes of it."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        self.calls += 1
        x = self.norm(self.linear(x))
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean / self.calls


def test_calls_that_are_not_tried_are_counted():
    """Two show that nothing becomes of a layer; a report and a warning of two calls hide that there are six."""
    model = torch.nn.Sequential(*(Counting() for _ in range(6)))
    compiled_once(model)
    (compiled,) = compiles()
    tried = len(compiled["calls"])
    assert compiled["untried"] == {"Counting": 6 - tried} and 0 < tried < 6
    said = str(torch_regions.report())
    assert f"6 calls: {tried} inlined, {6 - tried} not tried" in said
    assert "6 calls of Counting look alike, and none is a region: RESULT_SHARES_MEMORY" in compiled["warning"]
    assert f"{6 - tried} more calls of <code>Counting</code>" in torch_regions.report().html()


def test_with_nothing_compiled_it_says_so():
    assert str(torch_regions.report()) == "nothing was compiled in this process"


def test_threads_are_told_apart():
    def work():
        with torch._dynamo.config.patch(use_graph_deduplication=True):
            torch.compile(Layers([0.1] * 4), backend="eager")(torch.ones(2, 8))

    thread = threading.Thread(target=work, name="a thread of mine")
    thread.start()
    thread.join()
    assert [compiled["thread"] for compiled in compiles()] == ["a thread of mine"]


def test_rich_shows_the_same_text():
    console = pytest.importorskip("rich.console")
    compiled_once(Layers([0.1] * 4))
    report = torch_regions.report()
    shown = console.Console(record=True, width=1000, file=open("/dev/null", "w"))
    shown.print(report)
    assert [line.rstrip() for line in shown.export_text().splitlines()] == str(report).splitlines()


def test_without_rich_the_text_is_plain(monkeypatch, capsys):
    from torch_regions._report import Report, explain

    monkeypatch.setitem(sys.modules, "rich.console", None)
    explain._show(Report({"schema": 1, "processes": []}))
    compiled_once(Layers([0.1] * 4))
    explain._show(torch_regions.report())
    assert "Block (automatic)" in capsys.readouterr().err


ENUMS = (RegionInlineReason, ReuseMissReason, IllegalReason, BypassReason)


@pytest.mark.parametrize("reasons", ENUMS, ids=lambda enum: enum.__name__)
def test_each_reason_has_its_cause_and_cure_on_the_page(reasons):
    (meant,) = (each for each in advice.REASONS if each.enum == reasons.__name__)
    cures = meant.advice
    assert list(cures) == [reason.name for reason in reasons]
    text = (REPO / "SHARP_EDGES.md").read_text().partition("\n## Reasons\n")[2]
    table = text.partition(f"(`{reasons.__name__}`)\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", table, re.MULTILINE)
    assert rows == [(reason.name, reason.value, cures[reason.name]) for reason in reasons]
    assert f"\n### {meant.question} (`{reasons.__name__}`)\n" in text


def test_the_command_says_what_a_reason_means(capsys):
    assert cli.main(["reasons", "guard_fails", "RANDOM"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert f"  GUARD_FAILS: {ReuseMissReason.GUARD_FAILS.value}" in said
    assert f"    {advice.NOT_REUSED['GUARD_FAILS']}" in said
    assert f"  RANDOM: {IllegalReason.RANDOM.value}" in said
    assert len(said) == 6


def test_the_command_shows_all_reasons(capsys):
    assert cli.main(["reasons"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {reason.name}: {reason.value}\n" in said for enum in ENUMS for reason in enum)


def test_the_command_names_a_reason_that_it_does_not_know(capsys):
    assert cli.main(["reasons", "GUARD_FAIL"]) == 2
    assert "'GUARD_FAIL'" in capsys.readouterr().err
