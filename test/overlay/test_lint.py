"""Manifest, overlay files and stock modules fit together; the tools see it when they do not."""

from __future__ import annotations

import ast
import shutil
import textwrap

import pytest
from testing.overlay_tools import RELEASE, REPO, STALE, TORCH, VERSION, run_code, run_python

from torch_regions import _fingerprint, _lint, _manifest, _marks, _refresh, _verify
from torch_regions._files import overlay_files


def problems(root) -> list[str]:
    files = overlay_files(str(root))
    manifest = _manifest.load(str(root / "manifest.toml"))
    found = [str(mismatch) for mismatch in _verify.verify(files, manifest, str(TORCH), VERSION)]
    return found + _lint.lint(files, manifest, _verify.StockSources(str(TORCH)), RELEASE)


def test_this_repository():
    """Every row has its file and symbol, every replacement its row, every name that stock imports is there."""
    assert not problems(REPO)
    manifest = _manifest.load(str(REPO / "manifest.toml"))
    assert {"torch._dynamo.graph_region_tracker", "torch._dynamo.graph_deduplication"} <= {
        row.target for row in manifest.rows
    }
    packages = {file.parent.relative_to(REPO / "torch") for file in (REPO / "torch").rglob("__init__.py")}
    assert packages and not [package for package in packages if (TORCH / package).is_dir()]
    for row in manifest.rows:
        assert row.purpose.endswith(".") and row.remove_when.endswith("."), row


def test_the_manifest_is_fresh(tmp_path):
    """refresh would change nothing."""
    for name in ("torch", "manifest.toml"):
        source = REPO / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    assert _refresh.refresh(str(tmp_path), str(TORCH), VERSION) == []
    assert (tmp_path / "manifest.toml").read_text() == (REPO / "manifest.toml").read_text()


def test_every_replacement_loads_and_nothing_is_stale():
    """Import every overlaid module; each row's symbol is then ours."""
    result = run_code(
        textwrap.dedent(STALE)
        + textwrap.dedent(
            """
        import importlib, inspect, torch, torch._dynamo, torch._inductor.compile_fx, torch_regions, sys
        from torch_regions import overlay, _activate, _marks, _switch
        status = torch_regions.status()
        assert status.active
        for row in status.rows:
            module = importlib.import_module(row.target.partition(":")[0])
            symbol = row.target.partition(":")[2]
            if not symbol:
                assert module.__file__.startswith(status.root), row
                continue
            found = overlay.lookup(vars(module), symbol)
            ours = _switch.switched().get(row.target)
            assert (ours is None) == bool(row.always), row
            function = inspect.unwrap(ours or getattr(found, "__func__", found))
            assert inspect.getsourcefile(function).startswith(status.root), row
            assert f"{module.__name__}:{symbol}" in overlay.replaced(), row
        assert torch_regions.status().stale == ()
        assert not list(holders()), list(holders())
        stock = {
            torch.__path__[0] + "/" + row.target.removeprefix("torch.").replace(".", "/") + ".py"
            for row in status.rows
            if row.kind == "module"
        }
        assert len(stock) >= 2 and not list(stock_code(stock)), list(stock_code(stock))
        """
        )
    )
    assert not result.warnings


def test_extensions_of_loaded_modules_import_nothing_new():
    """Or the lock that is held while they are patched could wait for another thread's import."""
    run_code(
        """
        import sys, torch, torch_regions
        from torch_regions import _activate
        finder = _activate.current()
        before = set(sys.modules)
        loaded = [name for name in finder.files if name in before]
        torch_regions.status()
        new = {name for name in set(sys.modules) - before if name.startswith("torch.")}
        assert not new, (loaded, new)
        """
    )


def test_refresh_asks_for_a_purpose(empty_toy):
    empty_toy.file("_dynamo/current_scope_id.py", '"""Scopes of ours."""\n')
    empty_toy.manifest.write_text("# kept\nformat = 1\n[torch]\nreleases = []\n")
    with pytest.raises(_refresh.MissingText, match="Scopes of ours."):
        _refresh.refresh(str(empty_toy.root), str(TORCH), VERSION)
    assert empty_toy.manifest.read_text() == "# kept\nformat = 1\n[torch]\nreleases = []\n"


def test_refresh_keeps_what_people_wrote(empty_toy):
    empty_toy.file("_dynamo/current_scope_id.py", "from torch._dynamo.utils import counters\n")
    text = empty_toy.build().manifest.read_text()
    text = text.replace('purpose = "a test"', 'purpose = "mine"  # and a remark')
    by_hand = '"torch._dynamo.output_graph:OutputGraph.call_user_compiler"'
    text = text.replace(
        '"torch._dynamo.utils:counters"', f'{by_hand} = {{"2.12.0" = "x"}}\n"torch._dynamo.utils:counters"'
    )
    empty_toy.manifest.write_text(text)
    _refresh.refresh(str(empty_toy.root), str(TORCH), VERSION)
    after = empty_toy.manifest.read_text()
    assert 'purpose = "mine"  # and a remark' in after and by_hand in after and '"2.12.0" = "x"' in after
    row = _manifest.parse(after).rows[0]
    assert set(row.uses) == {"torch._dynamo.utils:counters", by_hand.strip('"')}


def test_lint_sees_what_is_wrong(empty_toy):
    """A missing export, an unlisted replacement, a changed signature, a stale row."""
    empty_toy.file("_dynamo/current_scope_id.py", "def current_scope_id(): return 1\n")
    path = empty_toy.file(
        "_guards.py",
        """
        from torch_regions.overlay import replaces
        @replaces
        def detect_fake_mode(values=None):
            pass
        @replaces("TracingContext.clear")
        def clear(): pass
        """,
    )
    empty_toy.build()
    path.write_text(path.read_text().replace("TracingContext.clear", "TracingContext.get"))
    found = "\n".join(problems(empty_toy.root))
    assert (
        "torch._dynamo.current_scope_id lacks 'enter_new_scope', which torch/_dynamo/output_graph.py imports" in found
    )
    assert "torch._guards:detect_fake_mode takes (values), stock's takes (inputs)" in found
    assert "torch._guards:TracingContext.get is replaced but has no row" in found
    assert "torch._guards:TracingContext.clear has a row, but no file makes this replacement" in found


def test_command_line():
    result = run_python("-m", "torch_regions", "verify")
    assert "match torch" in result.out
    result = run_python("-m", "torch_regions", "diff", "torch._dynamo.graph_region_tracker")
    assert "--- stock/torch/_dynamo/graph_region_tracker.py" in result.out
    assert "+++ overlay/torch/_dynamo/graph_region_tracker.py" in result.out
    result = run_python("-m", "torch_regions", "diff", "no.such", check=False)
    assert result.code == 2 and "no row 'no.such'" in result.err
    result = run_python("-m", "torch_regions", "status", TORCH_REGIONS="0")
    assert "overlay  off: TORCH_REGIONS=0" in result.out


def sha(text: str, symbol: str | None = None) -> str | None:
    return _fingerprint.symbol_sha(ast.parse(text), symbol)


def test_fingerprints_ignore_layout_and_see_meaning():
    plain = "def f(a, b=1):\n    return a + b\n"
    assert sha(plain) == sha('# c\ndef f(a,\n      b=1):\n    """Doc."""\n    return (a + b)  # c\n')
    different = ["b=2", "b=1.0", "b=True", "*, b=1", "b='1'", "b=b'1'", "b=None", "b=..."]
    shas = {sha(plain.replace("b=1", other, 1)) for other in ["b=1", *different]}
    assert len(shas) == 1 + len(different)
    body = "class A:\n    def f(self): return 1\n    def g(self): return 2\n"
    body += "X = 3\nif X:\n    Y: int = 4\nelse:\n    Y = 5\n"
    assert sha(body, "A.f") != sha(body, "A.g")
    assert sha(body, "A.f") == sha(body.replace("return 2", "return 7"), "A.f")
    assert sha(body, "Y") != sha(body.replace("Y = 5", "Y = 6"), "Y")
    assert sha(body, "A.h") is None and sha(body, "B") is None
    getter = "class A:\n    @property\n    def p(self): return 1\n    @p.setter\n    def p(self, v): pass\n"
    assert sha(getter, "A.p") != sha(getter.replace("pass", "raise"), "A.p")


def test_what_a_file_leans_on():
    text = """
from __future__ import annotations
from typing import TYPE_CHECKING
import torch
import torch._inductor.ir as ir
from torch._dynamo import config, utils
from torch.fx import Node
from torch_regions.overlay import replaces
if TYPE_CHECKING:
    from torch._dynamo.output_graph import OutputGraph
def helper():
    from torch._guards import TracingContext
    return TracingContext.get(), torch._C._log, torch._ops.HigherOrderOperator
@replaces("InvokeSubgraph.create")
def create(cls):
    return helper(), ir.Buffer, config.verbose, Node
def unreached():
    return utils.counters
"""
    found = _marks.uses(ast.parse(text), "torch._inductor.ir", _verify.StockSources(str(TORCH)))
    assert found["InvokeSubgraph.create"] == {
        "torch._guards:TracingContext",
        "torch._ops:HigherOrderOperator",
        "torch._inductor.ir:Buffer",
        "torch._dynamo.config:verbose",
    }
    assert found[None] == {"torch._dynamo.utils:counters"}
