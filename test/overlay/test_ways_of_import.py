"""However Python is started, installed and imported from, the overlay is whole or off, and off is said once."""

from __future__ import annotations

import compileall
import shutil
import sysconfig
import textwrap
import zipfile

import pytest
from testing.overlay_tools import OURS, REPO, run_code, run_python


# What is replaced in a loaded module, and is not in place.
PROGRAM = """
import sys, torch, torch_regions
torch._dynamo.config.use_graph_deduplication = True
def f(x):
    for _ in range(4):
        x = x.sin() + x.cos() * 2 + x.exp().tanh()
    return x
x = torch.ones(2, 4)
def missing():
    from torch_regions import _activate, overlay
    status = torch_regions.status()
    left_out, stock = _activate.current().left_out, overlay.replaced()
    for row in status.rows:
        module, _, symbol = row.target.partition(":")
        if module in sys.modules and row.target not in left_out:
            there = row.target in stock if symbol else sys.modules[module].__file__.startswith(status.root)
            if not there:
                yield row.target
def compiled():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert torch.equal(torch.compile(f, backend="eager")(x), f(x))
    return torch._dynamo.utils.counters["graph_deduplication"]["calls"]
def whole_or_off():
    calls = compiled()
    status = torch_regions.status()
    assert calls == (4 if status.active else 0), (calls, status)
    if status.active:
        assert not status.stale and not list(missing()), list(missing())
    print("whole" if status.active else "off")
whole_or_off()
"""


@pytest.mark.parametrize(
    "options", [("-O",), ("-OO",), ("-S",), ("-W", "error"), ("-m", "trace", "--count", "--no-report")]
)
def test_options_of_python(options, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    # Without the module site, the installed packages have to be named.
    path = [sysconfig.get_path("purelib")] if options == ("-S",) else []
    if "trace" in options and not REPO.joinpath("RELIABILITY.md").exists():
        pytest.skip("no repository")
    result = run_python(*options, str(script), path=path, cwd=tmp_path)
    assert result.out.splitlines()[-1] == "whole" and not result.warnings, result


def test_isolated():
    """-I takes no PYTHONPATH: what is installed there is used, if anything."""
    result = run_python("-I", "-c", "import torch, sys; print('torch_regions' in sys.modules)")
    if result.out.strip() == "False":
        pytest.skip("this environment has no torch-regions of its own")
    assert run_python("-I", "-c", PROGRAM).out.strip() in ("whole", "off")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """As a wheel unpacks."""
    folder = tmp_path_factory.mktemp("installed")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(OURS / "torch_regions", folder / "torch_regions", ignore=ignore)
    shutil.copytree(REPO / "torch", folder / "torch_regions" / "_overlay" / "torch", ignore=ignore)
    shutil.copy(REPO / "manifest.toml", folder / "torch_regions" / "_overlay")
    info = folder / "torch_regions-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-regions\nVersion: 9\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_regions = torch_regions._activate:activate\n")
    return folder


def test_without_sources(installed, tmp_path):
    folder = tmp_path / "compiled"
    shutil.copytree(installed, folder)
    compileall.compile_dir(folder, quiet=1, legacy=True)
    for path in folder.rglob("*.py"):
        path.unlink()
    result = run_code(PROGRAM, path=[folder])
    assert result.out == "off\n" and len(result.warnings) == 1, result
    assert "has a row in the manifest but no overlay file" in result.warnings[0]


def test_in_a_zip_file(installed, tmp_path):
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as stream:
        for path in sorted(installed.rglob("*")):
            stream.write(path, path.relative_to(installed))
    result = run_code(PROGRAM, path=[archive])
    assert result.out == "off\n" and len(result.warnings) == 1, result
    assert "manifest.toml cannot be read" in result.warnings[0]


HOOK = """
import importlib.machinery, sys
class Loader:
    def __init__(self, inner):
        self.inner = inner
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        self.inner.exec_module(module)
    def __getattr__(self, name):
        return getattr(self.inner, name)
class Changing(importlib.machinery.SourceFileLoader):
    seen = []
    def get_code(self, name):
        self.seen.append(name)
        return self.source_to_code(self.get_data(self.path), self.path)
class Hook:
    def find_spec(self, name, path=None, target=None):
        if not name.startswith("torch."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = Changing(name, spec.loader.path) if KIND == "changing" else Loader(spec.loader)
        return spec
"""


@pytest.mark.parametrize("kind", ["changing", "other"])
@pytest.mark.parametrize("when", ["import sys", "import torch", "import torch._dynamo"])
def test_another_import_hook_in_front(kind, when):
    """As tools that check types at run time install: before torch is imported, between, and after the decision."""
    hook = f"KIND = {kind!r}\n{HOOK}\n{when}\nsys.meta_path.insert(0, Hook())\n{PROGRAM}"
    code = hook + "import torch._inductor.compile_fx\nwhole_or_off()\nassert KIND == 'other' or Changing.seen\n"
    result = run_code(code)
    off = when == "import torch"  # some modules are loaded by then, and behind the hook
    assert result.out == ("off\n" if off else "whole\n") * 2, result
    assert len(result.warnings) == off, result.err


def test_typeguard_on_new_files():
    """Its finder is in front, and its loader changes the code of what it loads."""
    hook = "from typeguard import install_import_hook\ninstall_import_hook(['torch._dynamo.regions'])\n"
    result = run_code(hook + PROGRAM)
    assert result.out == "whole\n" and not result.warnings, result


def test_beartype_on_the_package_of_the_program(tmp_path):
    """Its finder is in front of all others. Stock torch does not import with each of its own types checked."""
    (tmp_path / "mine.py").write_text(PROGRAM + "def typed(number: int) -> int:\n    return number\n")
    result = run_code(
        """
        from beartype.claw import beartype_package
        from beartype.roar import BeartypeCallHintParamViolation
        beartype_package("mine")
        import mine
        try:
            mine.typed("one")
        except BeartypeCallHintParamViolation:
            print("checked")
        """,
        path=[tmp_path],
    )
    assert result.out == "whole\nchecked\n" and not result.warnings, result


def test_coverage(tmp_path):
    """It traces each line, of the overlay's files too."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    result = run_python("-m", "coverage", "run", "--include=*graph_region_tracker*", str(script), cwd=tmp_path)
    assert result.out == "whole\n" and not result.warnings, result
    report = run_python("-m", "coverage", "report", cwd=tmp_path).out
    assert "graph_region_tracker.py" in report, report


def test_reloaded_modules():
    """Its file's additions are in the namespace that stock's code is executed in again."""
    result = run_code(
        PROGRAM
        + textwrap.dedent(
            """
            import importlib, torch._dynamo.graph_deduplication, torch._inductor.fx_utils
            for module in (torch._inductor.fx_utils, torch._dynamo.graph_deduplication, torch_regions):
                for _ in range(2):
                    assert importlib.reload(module) is module
            whole_or_off()
            """
        )
    )
    assert result.out == "whole\n" * 2 and not result.warnings, result


def test_torch_that_is_imported_in_part():
    result = run_code(
        """
        import sys, types
        sys.modules["torch"] = types.ModuleType("torch")
        import torch_regions
        print(torch_regions.status().reason)
        """
    )
    assert result.out == "torch is imported in part only\n" and not result.warnings, result
