"""The overlay as patches: they apply to a pristine torch, and the torch that they make does what the overlay does."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest
from overlay_tools import REPO, TORCH, run_code, run_python, torch_copy

from torch_regions import _export, _manifest, _merge
from torch_regions._errors import OverlayError
from torch_regions._files import overlay_files


PEOPLE = {f"GIT_{who}_{what}": "someone@invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, **PEOPLE, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def series(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("series")
    run_python("-m", "torch_regions", "--root", str(REPO), "export", str(folder))
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def patched(series, tmp_path_factory) -> dict[str, str]:
    """Files of torch that the series changes or adds, after `git am` on a pristine tree."""
    tree = tmp_path_factory.mktemp("tree")
    names = [os.path.relpath(file, REPO) for file in overlay_files(str(REPO)).values()]
    git(tree, "init", "-q")
    for name in names:
        stock = TORCH.parent / name
        if stock.exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(stock.read_bytes())
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "pristine")
    git(tree, "am", "-q", *map(str, series))
    assert git(tree, "status", "--porcelain") == ""
    assert len(git(tree, "log", "--oneline").splitlines()) == 1 + len(_export.SYSTEMS)
    changed = git(tree, "diff", "--name-only", f"HEAD~{len(series)}").splitlines()
    assert sorted(changed) == sorted(names)
    return {name.removeprefix("torch/"): (tree / name).read_text() for name in names}


def test_each_system_is_a_patch(series):
    assert len(series) == len(_export.SYSTEMS)
    text = "".join(path.read_text() for path in series)
    for row in _manifest.load(str(REPO / _manifest.NAME)).rows:
        assert row.target[:40] in text
    for system, path in zip(_export.SYSTEMS, series, strict=True):
        assert system.title in path.read_text()


def test_series_is_the_same_each_time(series, tmp_path):
    run_python("-m", "torch_regions", "--root", str(REPO), "export", str(tmp_path))
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == [path.read_text() for path in series]


def test_nothing_of_the_loader_is_left(patched):
    for name, text in patched.items():
        tree = ast.parse(text)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & {"replaces", "stock"}, name
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert not [node for node in imports if (node.module or "").startswith("torch_regions")], name


PROGRAM = """
    import os, sys
    sys.path.insert(0, {here!r})
    import torch, torch_regions
    from torch._dynamo.regions.outcomes import outcomes
    from torch._dynamo.utils import counters
    assert torch.__file__.startswith({copy!r}), torch.__file__
    assert torch._dynamo.regions.outcomes.__file__.startswith({copy!r})
    assert not torch_regions.status()
    assert "torch-regions" not in torch.compiler.config.cache_key_tag
    import cached_model
    for way in ("flag", "mark"):
        for train in (False, True):
            torch._dynamo.reset()
            cached_model.main(3, way, train)
    calls = [outcome.outcome.name for outcome in outcomes()]
    assert calls.count("REUSED") == 8, calls
    assert counters["aot_autograd"]["autograd_cache_hit"] == 2, counters["aot_autograd"]
    assert counters["region_bodies"]["lowered"] >= 2 and len(counters["region_bodies"]) == 1
"""


def test_patched_torch_has_regions(patched, tmp_path):
    """With the overlay off: what it did is in torch now, and the same program is found whichever way it is written."""
    copy = torch_copy(tmp_path / "copy", patched)
    code = PROGRAM.format(here=str(REPO / "test" / "functorch"), copy=str(copy))
    run_code(code, path=[copy], TORCH_REGIONS="0", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"), OMP_NUM_THREADS="1")


@pytest.mark.parametrize("name", ["test_region_identity", "test_wrap_semantics_tracer"])
def test_tests_pass_on_patched_torch(patched, tmp_path, name):
    copy = torch_copy(tmp_path / "copy", patched)
    options = (
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        "-n",
        "0",
        "--rootdir",
        str(REPO),
        "-c",
        str(REPO / "pyproject.toml"),
    )
    result = run_python(
        "-m",
        "pytest",
        *options,
        str(REPO / "test" / "dynamo" / f"{name}.py"),
        path=[copy],
        TORCH_REGIONS="0",
        check=False,
    )
    assert result.code == 0, result.out[-3000:]


STOCK = '''"""A module."""

import os


def plain(x):
    return x + 1


class Thing:
    @staticmethod
    def made(x):
        return x

    @classmethod
    def of(cls, x):
        return (cls, x)

    def __call__(self, x):
        return x * 2
'''

OURS = '''"""Ours."""

from __future__ import annotations

import functools
import os
from torch.thing import Thing

from torch_regions.overlay import replaces, stock

_HERE = "torch.thing"


# Why it is so.
@replaces
@functools.cache
def plain(x):
    return helper(stock(f"{_HERE}:plain")(x))


def helper(x):
    return x * 10


@replaces("Thing.made")
@staticmethod
def anything(x):
    return stock("torch.thing:Thing.made")(x) + 1


@replaces("Thing.of")
@classmethod
def of(cls, x):
    return stock("torch.thing:Thing.of")(cls, x), "ours"


@replaces("Thing.__call__")
def _call(self, x):
    """Twice,
    and more."""
    return stock("torch.thing:Thing.__call__")(self, x) + 1
'''


def test_merged_text():
    text = _merge.merge(STOCK, OURS, "torch.thing")
    namespace: dict = {}
    exec(compile(text, "thing", "exec"), namespace)
    thing = namespace["Thing"]
    assert namespace["plain"](1) == 20 and namespace["plain"].cache_info().misses == 1
    assert thing.made(3) == 4 and thing.of(5) == ((thing, 5), "ours") and thing()(3) == 7
    assert text.count("import os\n") == 1 and text.index("# Why it is so.") < text.index("class Thing")
    assert thing.__call__.__name__ == "__call__"


@pytest.mark.parametrize(
    "ours, message",
    [
        ('from torch_regions.overlay import stock\nx = stock("torch.other:f")', "another module"),
        ("from torch_regions.overlay import stock\nx = stock(name)", "not a constant"),
        ("from torch_regions.overlay import replaces\n@replaces\ndef nothing(): ...\n", "0 definitions"),
        (
            'from torch_regions.overlay import replaces\n@replaces("Thing.made")\n@staticmethod\n'
            'def made(x):\n    return """a\nb"""\n',
            "several lines",
        ),
    ],
)
def test_what_cannot_be_merged(ours, message):
    with pytest.raises(OverlayError, match=message):
        _merge.merge(STOCK, ours, "torch.thing")


def test_a_module_of_no_system():
    with pytest.raises(OverlayError, match="belongs to no system"):
        _export.system_of("torch.nowhere")
