"""Benchmarks name the modes that they compare, and what they sum up is all that they measured."""

import ast
import re

import pytest
from testing.overlay_tools import REPO

from benchmarks import zoo_table
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
    kind = {"layers": 6, "backend": "aot_eager", "dropout": False, "repeat": 3, "conditions": "here"}
    lines = zoo_table.table([row], kind).splitlines()
    assert lines[3].count("|") == lines[4].count("|") == lines[5].count("|") and all(mode in lines[3] for mode in MODES)


def test_an_architecture_without_marks_has_no_such_column():
    row = zoo_table.Row("lstm", {mode: [1.0] for mode in MODES if mode != MARK})
    assert "none" in zoo_table.slower([row]) and "|  |  |" in zoo_table._line(row)
