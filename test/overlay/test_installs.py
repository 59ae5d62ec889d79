"""Installed means active: wherever torch is imported, and nowhere else once it is uninstalled."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest
from testing.overlay_tools import REPO, TORCH, VERSION, run_code, run_python

import torch_regions
from torch_regions import _manifest
from torch_regions._files import overlay_files


CHECK = """
import sys, torch
assert "torch._dynamo" not in sys.modules
import torch._dynamo.graph_deduplication as dedupe, torch_regions
status = torch_regions.status()
assert status.active and status.stale == (), status
assert dedupe.__file__.startswith(status.root), dedupe.__file__
assert "site-packages" in torch.__file__, torch.__file__
print(status.root, status.digest)
"""


def test_in_the_folder_of_the_repository():
    """Our torch/ has no __init__.py where torch has one, so it does not shadow the installed torch."""
    for arguments in (("-c", CHECK), ("-m", "torch_regions", "status")):
        result = run_python(*arguments, cwd=REPO)
        assert not result.warnings and str(REPO) in result.out
    assert not (REPO / "torch" / "__init__.py").exists()


def test_editable_install_and_spawned_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, sys

            def work(queue):
                import torch_regions, torch
                queue.put((torch_regions.status().active, torch.compiler.config.cache_key_tag))

            if __name__ == "__main__":
                import torch
                context = multiprocessing.get_context("spawn")
                queue = context.Queue()
                process = context.Process(target=work, args=(queue,))
                process.start()
                assert queue.get(timeout=120) == (True, torch.compiler.config.cache_key_tag)
                process.join()
            """
        )
    )
    assert not run_python(str(script), cwd=tmp_path).warnings


def test_compile_workers(tmp_path):
    """Inductor's pool of subprocesses runs under the same overlay as the process that feeds it."""
    script = tmp_path / "script.py"
    (tmp_path / "asked.py").write_text(
        "def state():\n"
        "    import torch, torch_regions\n"
        "    found = torch_regions.status()\n"
        "    return found.active, found.digest, torch.compiler.config.cache_key_tag\n"
    )
    script.write_text(
        textwrap.dedent(
            """
            import asked

            if __name__ == "__main__":
                from torch._inductor.compile_worker.subproc_pool import SubprocPool
                pool = SubprocPool(1)
                try:
                    there = pool.submit(asked.state).result(120)
                finally:
                    pool.shutdown()
                assert there == asked.state() and there[0], (there, asked.state())
            """
        )
    )
    assert not run_python(str(script), cwd=tmp_path, path=[tmp_path]).warnings


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """The files of the repository that a build takes, in a folder of their own."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "manifest.toml", "LICENSE", "MANIFEST.in"):
        shutil.copy(REPO / name, folder)
    for document in REPO.glob("*.md"):
        shutil.copy(document, folder)
    for name in ("torch", "torch_regions"):
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def wheel_of(source: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    return wheel_of(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    code = f"import setuptools.build_meta as build; build.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=source)
    (built,) = folder.glob("*.tar.gz")
    return built


def test_contents_of_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        text = archive.read("torch_regions/_overlay/manifest.toml").decode()
    assert not [name for name in names if name.startswith("torch/")]
    for path in overlay_files(str(REPO)).values():
        assert f"torch_regions/_overlay/{Path(path).relative_to(REPO)}" in names
    assert _manifest.parse(text) == _manifest.load(str(REPO / "manifest.toml"))
    assert "torch_regions/py.typed" in names
    assert "torch_regions/_overlay/torch/__init__.py" not in names
    modules = {str(path.relative_to(REPO)) for path in (REPO / "torch_regions").rglob("*.py")}
    others = {name for name in names if not name.startswith("torch_regions/_overlay/")} - modules
    assert {name.split("/")[-1] for name in others} == {
        *(
            "page.html.jinja",
            "schema.json",
            "py.typed",
            "METADATA",
            "WHEEL",
            "entry_points.txt",
            "top_level.txt",
            "RECORD",
            "LICENSE",
        )
    }


def test_a_wheel_needs_torch_and_is_for_each_python(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert wheel.name == f"torch_regions-{torch_regions.__version__}-py3-none-any.whl"
    assert metadata["Version"] == torch_regions.__version__ and metadata["Requires-Python"] == ">=3.10"
    needed = [need for need in metadata.get_all("Requires-Dist") if "extra ==" not in need]
    assert needed == ["torch<2.16,>=2.13", 'tomli>=2; python_version < "3.11"']


def test_each_release_of_the_manifest_may_be_installed():
    """And the change log has the version."""
    releases = _manifest.load(str(REPO / "manifest.toml")).releases
    assert {"2.13.0", "2.15.0"} <= set(releases)
    assert all((2, 13) <= tuple(map(int, release.split(".")[:2])) < (2, 16) for release in releases)
    assert f"## {torch_regions.__version__}\n" in (REPO / "CHANGELOG.md").read_text()


def test_a_source_distribution_builds_the_same_wheel(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert unpacked.name == f"torch_regions-{torch_regions.__version__}"
    assert {path.name for path in REPO.glob("*.md")} <= {path.name for path in unpacked.iterdir()}
    assert _contents(wheel_of(unpacked, tmp_path)) == _contents(wheel)


def test_a_file_that_is_gone_is_in_no_later_wheel(source, wheel, tmp_path):
    """setuptools takes whatever an earlier build has left in the folder."""
    before = {str(path) for path in (source / "build").rglob("*_overlay")}
    assert before, "nothing was left, so nothing is tested"
    for folder in before:
        (Path(folder) / "torch" / "gone.py").write_text("")
    assert _contents(wheel_of(source, tmp_path)) == _contents(wheel)


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# site-packages goes into __file__ of torch as CHECK expects it.
CHECK_BORROWED = CHECK.replace('"site-packages" in torch.__file__', '"borrowed" in torch.__file__')
PIP = ("-m", "pip", "--disable-pip-version-check")


@pytest.fixture
def clean(tmp_path) -> tuple[str, Path]:
    """A venv that borrows torch and the rest of what is installed here, but not this repository; its python and packages."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = str(home / "bin" / "python")
    packages = Path(
        run_python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))", python=python).out.strip()
    )
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "torch_regions" not in entry.name:
            (borrowed / entry.name).symlink_to(entry)
    (packages / "borrowed.pth").write_text(f"{borrowed}\n")
    return python, packages


def _everything(python: str) -> set[Path]:
    return {path for path in Path(python).parents[1].rglob("*") if "__pycache__" not in path.parts}


def test_pip_install_builds_apart_and_leaves_torch_alone(source, clean):
    """As README.md says it: with build isolation, where the build has no torch, and with dependencies."""
    python, packages = clean
    there = _everything(python)
    environment = {name: os.environ[name] for name in os.environ if name.startswith("PIP_")}
    done = run_python(*PIP, "install", str(source), python=python, check=False, timeout=600, **environment)
    if "No matching distribution found for setuptools" in done.err:
        pytest.skip("no registry is reached, from which pip would take setuptools for the build")
    assert done.code == 0, done.out + done.err
    assert "Successfully installed torch-regions" in done.out, "only torch-regions was to be installed"
    assert not [entry for entry in packages.iterdir() if entry.name.startswith("torch-")]
    assert "torch_regions/_overlay" in run_python("-c", CHECK_BORROWED, python=python).out
    run_python(*PIP, "uninstall", "-q", "-y", "torch-regions", python=python)
    assert _everything(python) == there


def test_wheel_in_a_venv_and_uninstalled_again(wheel, clean):
    python, packages = clean
    there = _everything(python)
    before = tree(TORCH / "_dynamo")
    run_python(*PIP, "install", "-q", "--no-deps", "--no-index", str(wheel), python=python)
    result = run_python("-c", CHECK_BORROWED, python=python)
    assert not result.warnings and "torch_regions/_overlay" in result.out, result
    run_python(*PIP, "uninstall", "-q", "-y", "torch-regions", python=python)
    assert _everything(python) == there
    run_python(
        "-c",
        "import torch, torch._dynamo.graph_deduplication as dedupe, importlib.util\n"
        "assert torch.compiler.config.cache_key_tag == ''\n"
        "assert dedupe.__file__.startswith(torch.__path__[0])\n"
        "assert importlib.util.find_spec('torch_regions') is None",
        python=python,
    )
    assert tree(TORCH / "_dynamo") == before


def tree(folder: Path) -> dict[str, int]:
    return {os.path.relpath(path, folder): path.stat().st_mtime_ns for path in folder.rglob("*.py")}


PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def _python(version: str) -> str | None:
    """An interpreter of that version: beside the one that runs here, or on the path, and one that starts."""
    beside = Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python{version}")
    for python in (*map(str, beside), shutil.which(f"python{version}")):
        if python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None


@pytest.mark.parametrize("version", PYTHONS)
def test_each_python_reads_all_files_and_finds_the_same_digests(version, source, tmp_path):
    """The loader needs no torch to verify one, so no wheel of torch for that Python is needed."""
    python = _python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    for folder in ("torch", "torch_regions"):
        run_python("-m", "compileall", "-q", str(source / folder), python=python, PYTHONPYCACHEPREFIX=str(tmp_path))
    # Before 3.11 tomli is a dependency; pip has a copy of it.
    (tmp_path / "tomli.py").write_text("from pip._vendor.tomli import *\n")
    path = [source] if version != "3.10" else [source, tmp_path]
    result = run_python("-m", "torch_regions", "verify", "--against", str(TORCH), path=path, python=python)
    assert f"match torch {VERSION}" in result.out


def test_import_torch_loads_nothing_more():
    """The time itself is measured by benchmarks/import_cost.py; here, what is imported."""
    code = """
        import sys, torch
        print(*sorted(name for name in sys.modules if name.startswith(("torch_regions", "torch._dynamo", "tomllib"))))
    """
    loaded = run_code(code).out.split()
    parts = ["_activate", "_cache_tag", "_early", "_files", "_finder"]
    assert loaded == ["torch_regions", *(f"torch_regions.{part}" for part in parts)]
    base = set(run_code("import sys, torch; print(*sys.modules)", TORCH_REGIONS="0").out.split())
    ours = set(run_code("import sys, torch; print(*sys.modules)").out.split())
    assert ours - base == {f"torch_regions.{part}" for part in parts[1:]}
