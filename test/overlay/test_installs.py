"""Installed means active: wherever torch is imported, and nowhere else once it is uninstalled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest
from testing.overlay_tools import REPO, TORCH, run_code, run_python

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
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "manifest.toml", "LICENSE"):
        shutil.copy(REPO / name, source)
    for name in ("torch", "torch_regions"):
        shutil.copytree(REPO / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
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


def test_wheel_in_a_venv_and_uninstalled_again(wheel, tmp_path):
    """The venv borrows torch and the rest of what is installed here, but not this repository."""
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
    # site-packages goes into __file__ of torch as CHECK expects it.
    check = CHECK.replace('"site-packages" in torch.__file__', '"borrowed" in torch.__file__')
    before = tree(TORCH / "_dynamo")
    pip = ("-m", "pip", "--disable-pip-version-check")
    run_python(*pip, "install", "-q", "--no-deps", "--no-index", str(wheel), python=python)
    result = run_python("-c", check, python=python)
    assert not result.warnings and "torch_regions/_overlay" in result.out, result
    run_python(*pip, "uninstall", "-q", "-y", "torch-regions", python=python)
    assert not [entry for entry in packages.iterdir() if "torch_regions" in entry.name]
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


def test_import_torch_loads_nothing_more():
    """The time itself is measured by benchmarks/import_cost.py; here, what is imported and read."""
    code = """
        import json, sys, time
        import torch
        loaded = sorted(name for name in sys.modules if name.startswith(("torch_regions", "torch._dynamo", "tomllib")))
        from torch_regions._files import overlay_files
        from torch_regions import _activate
        root = _activate.default_root()
        started = time.perf_counter()
        for _ in range(20):
            overlay_files(root)
        print(json.dumps([loaded, (time.perf_counter() - started) / 20]))
    """
    loaded, seconds = __import__("json").loads(run_code(code).out)
    parts = ["_activate", "_cache_tag", "_early", "_files", "_finder"]
    assert loaded == ["torch_regions", *(f"torch_regions.{part}" for part in parts)]
    assert seconds < 0.005
    base = set(run_code("import sys, torch; print(*sys.modules)", TORCH_REGIONS="0").out.split())
    ours = set(run_code("import sys, torch; print(*sys.modules)").out.split())
    assert ours - base == {f"torch_regions.{part}" for part in parts[1:]}
