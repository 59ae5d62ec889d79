"""The site: its pages link to what is there, each page is in the navigation, and each warning of ours has its row."""

import ast
import re

import pytest
from testing.overlay_tools import REPO

import torch_regions


DOCS = REPO / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "figures")  # tables are not in the site
ROOT = [page for page in REPO.glob("*.md") if page.name != "README.md"]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PRODUCT = [*(REPO / "torch").rglob("*.py"), *(REPO / "torch_regions").rglob("*.py")]


def _prose(text):
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """What a link to a heading of a page is called, as GitHub and mkdocs make it."""
    titles = re.findall(r"^#+ (.+)$", _prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, *REPO.glob("*.md")], ids=lambda page: str(page.relative_to(REPO)))
def test_each_link_leads_to_something(page):
    for link in LINK.findall(_prose(page.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        to = page.parent / path if path else page
        assert to.exists(), link
        assert not anchor or anchor in anchors(to.read_text()), link


def test_each_page_is_in_the_navigation():
    text = (REPO / "mkdocs.yml").read_text()
    named = set(re.findall(r"[\w/]+\.md", text.partition("\nnav:\n")[2]))
    assert named == {str(page.relative_to(DOCS)) for page in PAGES} | {page.name for page in ROOT}


def test_what_a_page_includes_is_there():
    for page in PAGES:
        for name, part in re.findall(r'^--8<-- "([^":]+):(\w+)"$', page.read_text(), re.MULTILINE):
            text = (REPO / name).read_text()
            assert f"[start:{part}]" in text and f"[end:{part}]" in text


def _warnings(text):
    """The longest fixed part of each warning that the code logs or raises, where its text stands in the call."""
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("warn", "warning")
        ):
            said = node.args[0] if node.args else None
            if isinstance(said, ast.JoinedStr):
                parts = [part.value for part in said.values if isinstance(part, ast.Constant)]
            elif isinstance(said, ast.Constant) and isinstance(said.value, str):
                parts = re.split(r"%[sr]", said.value)
            else:
                continue
            longest = max((part.strip(" .;:") for part in parts), key=len, default="")
            if longest:
                yield longest


def test_each_warning_has_its_cause_and_cure():
    page = (DOCS / "messages.md").read_text()
    missing = {path.name: found for path in PRODUCT for found in _warnings(path.read_text()) if found not in page}
    assert not missing


def test_each_error_has_its_cause_and_cure():
    page = (DOCS / "messages.md").read_text()
    public = [name for name in torch_regions.__all__ if isinstance(getattr(torch_regions, name), type)]
    raised = {name for name in public if issubclass(getattr(torch_regions, name), Exception)} - {"OverlayWarning"}
    raised |= {f"Region{what}Error" for what in ("Reuse", "Invariant")}
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == raised
