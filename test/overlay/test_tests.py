"""Where tests stand and what they import, and that each Note has tests: see test/README.md."""

import ast
import json
import re

import pytest
from testing import cases
from testing.overlay_tools import REPO


TESTS = REPO / "test"
FILES = [f for f in TESTS.rglob("*.py") if "golden" not in f.parts]
# Folders of tests that stand for no folder under `torch/`.
OTHER = {"overlay", "models", "faults", "fuzz", "testing"}
NOTE = re.compile(r"\bNote \[([^\]]+)\]")
ROWS = re.compile(r"^\| (.+) \| (`\S+\.py.*`) \|$", re.MULTILINE)


def _of_torch(folder):
    """The folder under `torch/` that a folder of tests mirrors."""
    first, *rest = folder.relative_to(TESTS).parts
    return [REPO.joinpath("torch", name, *rest) for name in (first, f"_{first}")]


def _imported(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_test_imports_another():
    names = {f.stem for f in FILES if f.name.startswith("test_")}
    assert not [(f.name, name) for f in FILES for name in _imported(f) if name.rpartition(".")[2] in names]


def test_each_slow_test_is_there():
    for name in json.loads(cases.COSTS.read_text()):
        file, function = name.split("::")
        assert f"def {function}(" in (REPO / file).read_text(), name


@pytest.mark.parametrize(("seconds", "left"), [(None, "abcd"), (1.0, "abcd"), (6.0, "abd"), (9.0, "ad"), (90.0, "ad")])
def test_slow_tests_run_fewer_cases(seconds, left):
    assert "".join(cases._within_budget(list("abcd"), seconds)) == left


def test_helpers_stand_apart():
    apart = {TESTS / "testing", TESTS / "fuzz", TESTS / "faults"}
    helpers = [f for f in FILES if not f.name.startswith("test_") and f.name != "conftest.py"]
    assert {f.parent for f in helpers} == apart
    assert all((TESTS / "testing" / f"{f.stem}.py").is_file() for f in helpers if f.parent.name == "testing")


def test_folders_of_tests_are_those_of_torch():
    folders = {f.parent for f in FILES if f.name.startswith("test_")} - {TESTS / name for name in OTHER}
    assert not [str(f) for f in folders if not any(there.is_dir() for there in _of_torch(f))]


def _notes():
    """Titles of Notes, and what cites them: under `torch/`, a Note begins with its title on a line of its own."""
    defined, cited = set(), {}
    for file in [*(REPO / "torch").rglob("*.py"), *FILES, *REPO.glob("*.md")]:
        text = file.read_text()
        defined |= {m[1] for m in re.finditer(r"^\s*#? ?Note \[([^\]]+)\]$", text, re.MULTILINE)}
        # A title may go over the end of a line.
        for title in NOTE.findall(re.sub(r"\s*\n[\s#]*", " ", text)):
            cited.setdefault(title, file.name)
    return defined, cited


def test_each_note_that_is_cited_is_there():
    defined, cited = _notes()
    assert not {title: where for title, where in cited.items() if title not in defined | {"Title"}}


def _index():
    text = (TESTS / "README.md").read_text()
    return {title: re.findall(r"`([^`]+)`", tests) for title, tests in ROWS.findall(text)}


def test_each_note_has_tests():
    assert set(_index()) == _notes()[0]


@pytest.mark.parametrize("title, tests", _index().items(), ids=list(_index()))
def test_the_tests_of_a_note_are_there(title, tests):
    for test in tests:
        path, _, function = test.partition("::")
        text = (TESTS / path).read_text()
        assert not function or f"\ndef {function}(" in text, test
