"""When anything does not match, the whole overlay stays off, with one warning that names it; strict raises."""

from __future__ import annotations

import functools
import re

import pytest
from testing.overlay_tools import RELEASE, REPO, TORCH, VERSION, run_code, stock_text, torch_copy

from torch_regions import _manifest, _verify
from torch_regions._errors import ManifestError
from torch_regions._files import overlay_files


OFF = """
    import warnings, torch, torch_regions
    import torch._dynamo
    import torch._dynamo.graph_deduplication as dedupe, torch._dynamo.graph_region_tracker as tracker
    from torch_regions import overlay
    status = torch_regions.status()
    assert not status.active and not status, status
    assert not overlay.replaced()
    assert "/torch_regions/" not in dedupe.__file__
    for module in (dedupe, tracker):
        assert module.__file__.startswith(torch.__file__.removesuffix("__init__.py")), module.__file__
    assert torch.compiler.config.cache_key_tag == ""
    assert torch.equal(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)), torch.full((2,), 2.0))
    print(status.reason)
"""
STRICT = """
    import torch
    for _ in range(2):
        try:
            import torch._dynamo
        except RuntimeError as error:
            print(type(error).__name__, error)
"""
TRACKER = "_dynamo/graph_region_tracker.py"


def edited(name: str, old: str, new: str) -> dict[str, str]:
    text = stock_text(name)
    assert old in text
    return {name: text.replace(old, new, 1)}


@pytest.fixture(scope="module")
def changed_torch(tmp_path_factory):
    """A torch with one function changed."""
    change = edited(TRACKER, "    def track_node(self, ", "    def track_node(self, changed, ")
    return torch_copy(tmp_path_factory.mktemp("changed"), change)


def test_a_changed_stock_module(changed_torch):
    result = run_code(OFF, path=[changed_torch])
    assert len(result.warnings) == 1, result.err
    assert "torch._dynamo.graph_region_tracker differs" in result.warnings[0]
    assert "verified against, in GraphRegionTracker.track_node." in result.warnings[0]
    assert result.out.strip() in result.warnings[0]


def test_strict_raises_each_time(changed_torch):
    result = run_code(STRICT, path=[changed_torch], TORCH_REGIONS="strict")
    lines = result.out.splitlines()
    assert len(lines) == 2 and not result.warnings
    for line in lines:
        assert line.startswith("OverlayMismatch") and "graph_region_tracker differs" in line


def test_verify_names_the_change_and_exits_1(changed_torch):
    result = run_code(
        "import sys; from torch_regions.cli import main; sys.exit(main(['verify']))", path=[changed_torch], check=False
    )
    assert result.code == 1 and "torch._dynamo.graph_region_tracker differs" in result.out


def test_a_changed_function_is_named(toy, tmp_path):
    """Only the one definition that changed is at fault, although the whole file differs."""
    name = "_higher_order_ops/cond.py"
    text = stock_text(name).replace("def cond_op_dense(", "def cond_op_dense(changed, ", 1)
    copy = torch_copy(tmp_path, {name: text, "_guards.py": stock_text("_guards.py") + "\n# a comment at the end\n"})
    result = toy.run(
        """
        import torch, torch._dynamo, torch._guards
        import torch._inductor.exc as exc
        assert not hasattr(torch._guards, "calls") and not hasattr(exc, "AddedError")
        """,
        path=[copy],
    )
    # The toy is found first, then the copy of torch.
    assert len(result.warnings) == 1, result.err
    assert "torch._higher_order_ops.cond:cond_op_dense differs" in result.warnings[0]
    assert "_guards" not in result.warnings[0]


def test_layout_and_comments_do_not_matter(toy, tmp_path):
    text = stock_text("_guards.py")
    text = text.replace("def detect_fake_mode(", "# one more comment\n\n\ndef detect_fake_mode(", 1)
    copy = torch_copy(tmp_path, {"_guards.py": text})
    assert not toy.run("import torch_regions; assert torch_regions.status()", path=[copy]).warnings


def test_a_change_in_what_is_leant_on(tmp_path):
    """The private names in `uses` are verified too."""
    name = "utils/_ordered_set.py"
    copy = torch_copy(tmp_path, edited(name, "    def discard(self, elem", "    def discard(self, changed, elem"))
    files = overlay_files(str(REPO))
    found = _verify.verify(files, _manifest.load(str(REPO / "manifest.toml")), str(copy / "torch"), VERSION)
    assert [mismatch.what for mismatch in found] == ["torch.utils._ordered_set:OrderedSet"]


def test_another_release(tmp_path):
    text = stock_text("version.py").replace(RELEASE, "2.99.0")
    copy = torch_copy(tmp_path, {"version.py": text})
    result = run_code(OFF, path=[copy])
    assert len(result.warnings) == 1
    assert (
        "torch 2.99.0" in result.warnings[0]
        and "not among the verified releases (2.13.0, 2.15.0)" in result.warnings[0]
    )


def test_unknown_value_of_the_variable():
    result = run_code(OFF, TORCH_REGIONS="maybe")
    assert len(result.warnings) == 1
    assert 'TORCH_REGIONS="maybe" is none of "1" (on), "0" (off), "strict"' in result.warnings[0]


def test_zero_is_silent():
    result = run_code(OFF, TORCH_REGIONS="0")
    assert not result.warnings and "TORCH_REGIONS=0" in result.out


HEADER = f'format = 1\n[torch]\nreleases = ["{RELEASE}"]\n[[replacement]]\n'


@pytest.mark.parametrize(
    "text, message",
    [
        ("format = [", "manifest.toml is not valid TOML"),
        ("format = 99\n", "has format 99, this loader reads format 1"),
        ("format = 1\n", "the header lacks 'torch'"),
        (HEADER + 'kind = "module"\n', "lacks 'target'"),
        (HEADER + 'target = "torch.a"\nkind = "symbol"\n', "kind must be"),
        (
            HEADER + 'target = "torch.a:b"\nkind = "symbol"\ngroup = "core"\npurpose = ""\nremove_when = ""\n',
            "lacks 'sha256'",
        ),
        (HEADER + 'target = "torch.a"\nkind = "new"\ngroup = "core"\npurpose = 3\n', "wrong value for 'purpose'"),
        (HEADER + 'target = "torch.a:b"\nkind = "symbol"\n', "lacks 'group'"),
        (
            HEADER + 'target = "torch.a:b"\nkind = "symbol"\ngroup = "fast"\n',
            "group must be one of core, cost, cache, speed",
        ),
        (HEADER + 'target = "torch.a:b"\nkind = "symbol"\ngroup = "speed"\nalways = "x"\n', "does not run always"),
        (HEADER + 'target = "torch.a"\nkind = "module"\ngroup = "core"\n', "has to say why in 'always'"),
    ],
)
def test_broken_manifest_is_told_apart(text, message):
    with pytest.raises(ManifestError, match=re.escape(message)):
        _manifest.parse(text)


@pytest.mark.parametrize("text", [None, "format = ["], ids=["missing", "no toml"])
def test_broken_manifest(empty_toy, text):
    empty_toy.file("_dynamo/current_scope_id.py", "VALUE = 1\n")
    if text is not None:
        empty_toy.manifest.write_text(text)
    message = "manifest.toml cannot be read" if text is None else "manifest.toml is not valid TOML"
    result = empty_toy.run(
        """
        import torch, torch._dynamo.current_scope_id as scope
        assert not hasattr(scope, "VALUE")
        """
    )
    assert len(result.warnings) == 1 and message in result.warnings[0], result.err
    strict = empty_toy.run("import torch, torch._dynamo", TORCH_REGIONS="strict", check=False)
    assert "OverlayMismatch" in strict.err and message in strict.err


def test_rows_and_files_belong_together(empty_toy):
    path = empty_toy.file("_dynamo/current_scope_id.py", "VALUE = 1\n")
    manifest = _manifest.load(str(empty_toy.build().manifest))
    files = overlay_files(str(empty_toy.root))
    verify = functools.partial(_verify.verify, torch_dir=str(TORCH), version=VERSION)
    assert not verify(files, manifest)
    other = empty_toy.file("_dynamo/guards.py", "VALUE = 1\n")
    (found,) = verify(overlay_files(str(empty_toy.root)), manifest)
    assert "torch._dynamo.guards has an overlay file but no row" in str(found)
    other.rename(other.with_name("__init__.py"))
    (found,) = verify(overlay_files(str(empty_toy.root)), manifest)
    assert "the installed torch has this package, and ours would hide it" in str(found)
    path.unlink()
    other.with_name("__init__.py").unlink()
    result = empty_toy.run("import torch, torch._dynamo")
    assert len(result.warnings) == 1
    assert "torch._dynamo.current_scope_id has a row in the manifest but no overlay file" in result.warnings[0]


def test_overlay_file_that_is_no_python(empty_toy):
    empty_toy.file("_dynamo/current_scope_id.py", "VALUE = 1\n")
    empty_toy.build().file("_dynamo/current_scope_id.py", "VALUE = \n")
    result = empty_toy.run("import torch, torch._dynamo")
    assert len(result.warnings) == 1 and "current_scope_id.py" in result.warnings[0], result.err


def test_warning_as_error_leaves_torch_importable():
    result = run_code("import torch; print(torch.ones(1))", TORCH_REGIONS="maybe", PYTHONWARNINGS="error::UserWarning")
    assert "tensor" in result.out


THREADS = """
    import sys, threading, torch, importlib
    sys.setswitchinterval(1e-5)
    barrier, seen = threading.Barrier(6), []
    names = ["torch._dynamo.current_scope_id", "torch._guards", "torch._inductor.exc"] * 2
    def work(name):
        barrier.wait()
        import torch._dynamo
        module = importlib.import_module(name)
        seen.append(hasattr(module, "AddedError") or hasattr(module, "calls") or hasattr(module, "OURS"))
    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    [thread.start() for thread in threads]
    [thread.join(120) for thread in threads]
    import torch_regions
    assert torch_regions.status().stale == ()
    print(seen)
"""


def test_all_threads_agree(toy):
    """Threads that import the compiler at once see one decision."""
    result = toy.run(THREADS)
    assert result.out == f"{[True] * 6}\n" and not result.warnings, result
    result = toy.run(THREADS, TORCH_REGIONS="maybe")
    assert result.out == f"{[False] * 6}\n" and len(result.warnings) == 1, result


def test_unwritable_cache_folder(tmp_path):
    """Off, stock fails. On, what is compiled is kept elsewhere, as for a folder that may only be read."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    code = """
        import torch
        try:
            print(torch.compile(lambda x: x.sin() + 1)(torch.zeros(3)))
        except Exception as error:
            print(type(error).__name__, str(error).splitlines()[0])
    """
    outcomes = {
        setting: run_code(code, TORCHINDUCTOR_CACHE_DIR=str(blocked / "cache"), TORCH_REGIONS=setting)
        for setting in ("0", "strict")
    }
    assert outcomes["0"].out.startswith("NotADirectoryError")
    assert outcomes["strict"].out == "tensor([1., 1., 1.])\n"
    assert not outcomes["strict"].warnings  # the overlay's; that of the folder is in the log
    assert blocked.read_text() == ""


@pytest.mark.parametrize(
    "value, message",
    [
        ("core,fast", '"fast" is no group; the groups are core, cost, cache, speed'),
        ("cost, cache", 'lacks "core"'),
    ],
)
def test_groups_that_cannot_be_asked_for(value, message):
    result = run_code(OFF, TORCH_REGIONS_GROUPS=value)
    assert len(result.warnings) == 1 and f'TORCH_REGIONS_GROUPS="{value}"' in result.warnings[0], result.err
    assert message in result.warnings[0]
