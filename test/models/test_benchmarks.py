"""Benchmarks name the modes that they compare, and what they sum up is all that they measured."""

import ast
import re

import pytest
from testing.overlay_tools import REPO

from benchmarks import first_call, kept, zoo_table
from benchmarks.modes import FLAG, MARK, MODES, OVERLAY_FLAT, STOCK_FLAT, environment, in_turns


FILES = sorted((REPO / "benchmarks").glob("*.py"))
PLAIN_FLAT = re.compile(r"(?<!stock )(?<!overlay )\bflat\b", re.IGNORECASE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_flat_is_stock_flat_or_overlay_flat(path):
    texts = [n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)]
    # A line may end between the two words.
    texts = [" ".join(text.split()) for text in texts if isinstance(text, str)]
    assert not [text for text in texts if PLAIN_FLAT.search(text)]


def test_stock_flat_is_without_the_overlay():
    assert [mode for mode in MODES if environment(mode)["TORCH_REGIONS"] == "0"] == [STOCK_FLAT]


def test_each_mode_has_its_turn_and_none_always_follows_another():
    order = [*in_turns([*MODES], 4)]
    assert sorted(order[:4]) == sorted(MODES) and order[::4] == [*MODES]


@pytest.mark.parametrize("slow", [OVERLAY_FLAT, FLAG, MARK])
def test_the_summary_looks_at_every_column(slow):
    row = zoo_table.Row("encoder", {mode: [1.1 if mode == slow else 1.0] * 3 for mode in MODES})
    assert f"encoder ({slow} 1.10)" in zoo_table.slower([row])
    assert "none" in zoo_table.slower([zoo_table.Row("encoder", {mode: [1.0] for mode in MODES})])
    kind = {"layers": 6, "backend": "aot_eager", "dropout": False, "repeat": 3}
    lines = zoo_table.table([row], kind, "here").splitlines()
    assert lines[3].count("|") == lines[4].count("|") == lines[5].count("|") and all(mode in lines[3] for mode in MODES)


def test_an_architecture_without_marks_has_no_such_column():
    row = zoo_table.Row("lstm", {mode: [1.0] for mode in MODES if mode != MARK})
    assert "none" in zoo_table.slower([row]) and "|  |  |" in zoo_table._line(row)


def test_first_calls_are_compared_with_blocks_compiled_by_themselves():
    runs = {mode: {s: {t: [2.0, k] for t in first_call.TIMES} for s in first_call.STATES} for k, mode in
            ((4.0, first_call.PER_BLOCK), (1.0, FLAG))}  # fmt: skip
    deep = {mode: {s: {t: [4.0] for t in first_call.TIMES} for s in first_call.STATES} for mode in runs}
    text = first_call.table({("gpt2", "train", 2): runs, ("gpt2", "train", 8): deep}, [], "here")
    assert "2.0 (3.0); 2.0 (3.0); 2.0 (3.0) | 1.0 (1.5) 0.50x; 1.0 (1.5) 0.50x; 1.0 (1.5) |" in text
    assert "8 layers over 2, cold, wall: per-block compile 2.00, flag 4.00" in text
    assert "gives the results of stock flat" in text
    assert "DIFFERS" in first_call.table({("gpt2", "train", 2): runs}, ["DIFFERS"], "here")


def test_a_run_that_was_ended_goes_on_with_the_rows_that_are_missing(tmp_path, monkeypatch):
    path, order = tmp_path / "figures" / "rows.json", ["one", "two", "three"].index
    monkeypatch.setattr(kept, "conditions", lambda: "first run")
    kept.Kept(path, order, {"layers": 6}).add("three", {"seconds": 3})
    monkeypatch.setattr(kept, "conditions", lambda: "second run")
    rows = kept.Kept(path, order, {"layers": 6})
    assert rows.conditions() == "first run"
    assert rows.wanted(["one", "three"], missing=True) == ["one"]
    assert rows.wanted(["one", "three"], missing=False) == ["one", "three"]
    rows.add("one", {"seconds": 1})
    again = kept.Kept(path, order, {"layers": 6})
    assert again.rows == {"one": {"seconds": 1}, "three": {"seconds": 3}} and [*again.rows] == ["one", "three"]
    assert again.conditions() == "- one: second run\n- three: first run"


def test_rows_measured_with_other_options_are_not_in_the_table(tmp_path):
    path = tmp_path / "rows.json"
    kept.Kept(path, str, {"layers": 6}).add("one", {})
    others = kept.Kept(path, str, {"layers": 12})
    assert others.rows == {} and others.wanted(["one"], missing=True) == ["one"]
    others.add("two", {})
    assert [*kept.Kept(path, str, {"layers": 12}).rows] == ["two"]
