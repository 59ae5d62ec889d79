"""The report as a page: what is on it, and that it works in a browser where there is one."""

import html.parser
import re
import shutil
import subprocess

import pytest
import torch
import torch._dynamo
from testing.reported_programs import Layers, compiled_once
from torch._dynamo.regions.facts import forget_facts
from torch._dynamo.utils import clear_compilation_metrics

import torch_regions
from torch_regions._report import Report
from torch_regions._report.page import tree


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def report():
    """Of a model of 64 layers, one of which differs, and one that is compiled without the flag."""
    clear_compilation_metrics()
    forget_facts()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        compiled_once(Layers([0.1] * 63 + [0.2], dropout=0.5), "aot_eager").sum().backward()
    compiled_once(torch.nn.Linear(8, 8))
    yield torch_regions.report()
    torch._dynamo.reset()


class _Page(html.parser.HTMLParser):
    """The tags of a page, with their attributes, and the text in them."""

    VOID = {"meta", "input", "br"}

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag, of_class=""):
        return [attrs for name, attrs in self.tags if name == tag and of_class in attrs.get("class", "").split() + [""]]


def test_it_needs_nothing_else_and_is_small(report):
    text = report.html()
    assert len(text.encode()) < 2_000_000
    page = _Page(text)
    assert not page.open
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)|@import|url\(""", text)


def test_each_reason_links_to_its_cause_and_cure(report):
    page = _Page(report.html())
    process = report.data["processes"][0]
    links = {a["href"] for a in page.all("a")} - {
        f"#{attrs['id']}" for _, attrs in page.tags if "n" in attrs.get("id", "")
    }
    meant = {f"#p0{name}" for name in process["reasons"]}
    assert links == meant
    assert "GUARD_FAILS" in process["reasons"]
    assert meant <= {f"#{attrs['id']}" for tag, attrs in page.tags if tag == "dt"}
    for cause in process["reasons"].values():
        assert cause in page.text


def test_each_call_is_a_square_in_order_coloured_by_its_body(report):
    page = _Page(report.html())
    squares = [a for a in page.all("a") if re.search(r"\b(TRACED|REUSED|INLINED)\b", a.get("class", ""))]
    calls = report.data["processes"][0]["compiles"][0]["calls"]
    assert [a["class"].split()[0] for a in squares] == [call["outcome"] for call in calls]
    assert [a["title"].partition(":")[0] for a in squares] == [f"self.layers[{k}]" for k in range(64)]
    colours = {}
    for square, call in zip(squares, calls):
        colours.setdefault(tuple(call["bodies"]), set()).add(square.get("style"))
    assert all(len(each) == 1 for each in colours.values())
    assert colours.pop(()) == {None}
    assert len(set().union(*colours.values())) == len(colours)
    anchors = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert {a["href"][1:] for a in page.all("a")} <= anchors


def test_it_has_stages_reasons_and_what_differs(report):
    page = _Page(report.html())
    widths = [
        float(re.search(r"width:([\d.]+)%", each["style"])[1])
        for each in page.all("span")
        if "width" in each.get("style", "")
    ]
    assert len(widths) >= 2 and max(widths) <= 100
    assert len(page.all("div", "time")) == 2
    for said in ("GUARD_FAILS", "self.layers[63].scale", "hold it as a tensor", "RANDOM", "Compiled without regions."):
        assert said in page.text


def test_modules_stand_in_a_tree():
    calls = [{"path": path} for path in ("self.layers[0]", "self.layers[1]", "self.layers[1].mlp", "")]
    found = tree(calls)
    layers = found["parts"]["self"]["parts"]["layers"]["parts"]
    assert list(layers) == ["[0]", "[1]"]
    assert layers["[1]"]["calls"] == [calls[1]] and layers["[1]"]["parts"]["mlp"]["calls"] == [calls[2]]


def test_names_of_the_program_are_text(report):
    data = {"schema": 1, "processes": [dict(report.data["processes"][0], command=["<script>alert(1)</script>"])]}
    text = Report(data).html()
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text


PROBE = """
<script>
{
const search = document.getElementById("search");
search.value = "layers[63]";
search.dispatchEvent(new Event("input"));
const square = document.querySelector(".calls a");
square.focus();
document.body.dataset.probe = JSON.stringify([
  document.getElementById("found").textContent, document.activeElement === square,
  document.documentElement.scrollWidth <= window.innerWidth]);
}
</script>
</body>
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (Debian: apt install chromium)")
@pytest.mark.parametrize("width", [1280, 400])
def test_in_a_browser(report, tmp_path, width):
    file = tmp_path / "page.html"
    file.write_text(report.html().replace("</body>", PROBE))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--enable-logging=stderr", f"--window-size={width},900", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert 'data-probe="[&quot;1 found&quot;,true,true]"' in done.stdout
    assert ":CONSOLE" not in done.stderr
