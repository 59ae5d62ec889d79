"""Words that are gone: the code uses the field's, see the table in CONTRIBUTING.md."""

import ast
import io
import re
import tokenize

import pytest
from testing.overlay_tools import REPO


# Names of classes and functions that have another name now.
NAMES = {
    *("Transport", "Fate", "Fates", "Place", "Held", "HeldConstant", "HeldList", "Holding", "Observer", "Listener"),
    *("Route", "Stop", "KeptBody", "Unkept", "RegionCalls", "come_by", "came_by", "looks_aside", "asker", "askers"),
    *("Given", "Behind", "Bound"),
}
# Names of variables and parameters under `torch/`: an index, or what was read.
VARIABLES = {"place", "places", "met"}
# A sentence names its actor, and a thing by one word.
IN_PROSE = re.compile(r"\b(nobody|somebody|whoever|comes? by|came by|told of|foretold|asker|twins?)\b", re.IGNORECASE)
PRODUCT = [*(REPO / "torch").rglob("*.py"), *(REPO / "torch_regions").rglob("*.py")]
OTHER = [
    f for folder in ("test", "benchmarks", "tools") for f in (REPO / folder).rglob("*.py") if "golden" not in f.parts
]
PAGES = [*REPO.glob("*.md"), REPO / "test" / "README.md"]


def _prose(text):
    """Comments and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield ast.get_docstring(node) or ""


def _gone(text):
    return [found[0] for part in _prose(text) if (found := IN_PROSE.search(part))]


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(REPO)))
def test_words_that_are_gone(path):
    text = path.read_text()
    assert not _gone(text)
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    names |= {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert not names & NAMES
    if REPO / "torch" in path.parents:
        assert not (names | {node.arg for node in ast.walk(ast.parse(text)) if isinstance(node, ast.arg)}) & VARIABLES


def test_words_that_are_gone_from_tests_and_tools():
    assert not {str(path.relative_to(REPO)): found for path in OTHER if (found := _gone(path.read_text()))}


def test_words_that_are_gone_from_pages():
    # What is quoted is a name: of a test, or of code.
    pages = {path.name: re.sub(r"`[^`]*`", "", path.read_text()) for path in PAGES}
    assert not {name: found[0] for name, text in pages.items() if (found := IN_PROSE.search(text))}


def test_the_walk_sees_comments_and_docstrings():
    assert list(_prose('"""One."""\n\n\ndef f():\n    """Two."""\n    # three\n')) == ["# three", "One.", "Two."]
