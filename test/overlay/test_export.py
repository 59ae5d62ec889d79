"""The overlay as patches: they apply to a pristine torch, and the torch that they make does what the overlay does."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
from pathlib import Path

import pytest
from testing.overlay_tools import RELEASE, REPO, TORCH, run_code, run_python, torch_copy

from torch_regions import _export, _manifest, _merge, _systems, _verify
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


def _rows():
    """The rows that are for this release."""
    return _manifest.load(str(REPO / _manifest.NAME)).on(RELEASE).rows


def _names() -> list[str]:
    """The files of the overlay that this release has rows for."""
    here = {row.module for row in _rows()}
    return [os.path.relpath(file, REPO) for module, file in overlay_files(str(REPO)).items() if module in here]


@pytest.fixture(scope="module")
def series(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("series")
    run_python("-m", "torch_regions", "--root", str(REPO), "export", str(folder))
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def tree(series, tmp_path_factory) -> Path:
    """Torch's source tree, as far as the series changes it, after `git am` on a pristine one."""
    tree = tmp_path_factory.mktemp("tree")
    names = _names()
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
    assert len(git(tree, "log", "--oneline").splitlines()) == 1 + len(_systems.SYSTEMS)
    changed = git(tree, "diff", "--name-only", f"HEAD~{len(series)}", "--", "torch").splitlines()
    assert sorted(changed) == sorted(names)
    return tree


@pytest.fixture(scope="module")
def patched(tree) -> dict[str, str]:
    """Files of torch that the series changes or adds."""
    names = _names()
    return {name.removeprefix("torch/"): (tree / name).read_text() for name in names}


def test_each_system_is_a_patch(series):
    assert len(series) == len(_systems.SYSTEMS)
    text = "".join(path.read_text() for path in series)
    for row in _rows():
        assert row.target[:40] in text
    for system, path in zip(_systems.SYSTEMS, series, strict=True):
        assert system.title in path.read_text()


def export(folder: Path, *options: str):
    return run_python("-m", "torch_regions", "--root", str(REPO), "export", str(folder), *options, check=False)


def export_two(folder: Path, force: bool = False) -> list[Path]:
    """Two patches of two small modules: whether a folder can take them has nothing to do with their number."""
    manifest = _manifest.load(str(REPO / _manifest.NAME)).on(RELEASE)
    rows = tuple(row for row in manifest.rows if row.module in ("torch._dynamo.pgo", "torch.utils._traceback"))
    sources, files = _verify.StockSources(str(TORCH)), overlay_files(str(REPO))
    names = _export.export(str(folder), dataclasses.replace(manifest, rows=rows), files, sources, RELEASE, force)
    assert len(names) == 2
    return [folder / name for name in names]


@pytest.fixture
def two(tmp_path) -> list[Path]:
    return export_two(tmp_path / "two")


def test_link_of_a_patch_is_not_written_through(two, tmp_path):
    target, folder = tmp_path / "precious", tmp_path / "out"
    folder.mkdir()
    target.write_text("precious")
    link = folder / two[-1].name
    link.symlink_to(target)
    with pytest.raises(OverlayError, match="--force") as refused:
        export_two(folder)
    assert str(link) in str(refused.value) and str(target) in str(refused.value)
    assert list(folder.iterdir()) == [link] and link.is_symlink()
    forced = export_two(folder, force=True)
    assert target.read_text() == "precious" and not link.is_symlink()
    assert sorted(folder.iterdir()) == forced
    assert [path.read_text() for path in forced] == [path.read_text() for path in two]


def test_foreign_file_is_not_overwritten(two, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    foreign, folder = out / two[1].name, out / two[0].name
    foreign.write_text("notes of a reader")
    with pytest.raises(OverlayError, match="--force") as refused:
        export_two(out)
    assert str(foreign) in str(refused.value)
    assert list(out.iterdir()) == [foreign] and foreign.read_text() == "notes of a reader"
    foreign.unlink()
    folder.mkdir()
    with pytest.raises(OverlayError, match="is a folder") as refused:
        export_two(out, force=True)
    assert str(folder) in str(refused.value) and list(out.iterdir()) == [folder]


def test_series_is_written_again_over_itself(two):
    before = [path.read_text() for path in two]
    assert export_two(two[0].parent) == two and [path.read_text() for path in two] == before


def test_command_says_why_nothing_is_exported(series, tmp_path):
    """With exit status 1. ``--force`` replaces the file, and the series is the same each time that it is written."""
    foreign = tmp_path / series[1].name
    foreign.write_text("notes of a reader")
    refused = export(tmp_path)
    assert refused.code == 1 and str(foreign) in refused.err and "--force" in refused.err
    assert export(tmp_path, "--force").code == 0
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
    from testing import cached_model
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
    code = PROGRAM.format(here=str(REPO / "test"), copy=str(copy))
    run_code(code, path=[copy], TORCH_REGIONS="0", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"), OMP_NUM_THREADS="1")


def test_a_patch_can_be_reviewed(series, tree):
    """Each has a reason, tests, and about 1,500 changed lines of torch at most; none leaves a tool of the overlay."""
    for number, (system, path) in enumerate(zip(_systems.SYSTEMS, series, strict=True)):
        here = f"HEAD~{len(series) - number - 1}"
        counts = git(tree, "show", "--numstat", "--format=", here, "--", "torch").split()
        changed = sum(map(int, counts[0::3])) + sum(map(int, counts[1::3]))
        assert changed <= 1600, (path.name, changed)
        tests = git(tree, "show", "--name-only", "--format=", here, "--", "test/regions/**/test_*.py").split()
        assert tests, path.name
        message = git(tree, "show", "--no-patch", "--format=%B", here)
        assert " ".join(system.why.split()) in " ".join(message.split())
        assert all(f"- {test}" in message for test in tests)
    assert "def _stock_" not in "".join(path.read_text() for path in series)


# What a few of torch's systems do; REGIONS_FULL=1 runs all tests of Dynamo.
SAMPLE = ("regions/test_keys", "test_subgraph_rollback", "regions/trace/test_stamp", "test_graph_region_tracker")


def test_tests_of_the_series_pass_on_patched_torch(tree, patched, tmp_path):
    """With the overlay off: the tests come from the series, too."""
    copy = torch_copy(tmp_path / "copy", patched)
    tests = tree / "test" / "regions"
    full = "REGIONS_FULL" in os.environ
    which = [tests / "dynamo"] if full else [tests / "dynamo" / f"{name}.py" for name in SAMPLE]
    options = ("-p", "no:cacheprovider", "-W", "ignore", "-n", "0", "-q", "-c", str(tests / "pytest.ini"))
    result = run_python(
        *("-m", "pytest", *options, "--rootdir", str(tests), *map(str, which)),
        path=[copy],
        TORCH_REGIONS="0",
        OMP_NUM_THREADS="1",
        check=False,
        timeout=3600 if full else 600,
    )
    assert result.code == 0, result.out[-3000:]


GRAPHS = """
    import hashlib, sys
    sys.path.insert(0, {repo!r})
    import torch, torch._dynamo
    from benchmarks.zoo import build
    for name in {names!r}:
        torch._dynamo.reset()
        graphs = []
        def backend(gm, inputs):
            graphs.extend(m.print_readable(print_output=False) for m in gm.modules() if isinstance(m, torch.fx.GraphModule))
            return gm
        example = build(name, 3)
        with torch._dynamo.config.patch(use_graph_deduplication=True):
            example.call(torch.compile(example.model, backend=backend))
        text = "".join(line.partition("# File")[0] for line in "\\n".join(graphs).splitlines(True))
        print(name, len(graphs), hashlib.sha256(text.encode()).hexdigest())
"""
MODELS = ("llama", "gpt2", "bert", "vit", "mixtral", "qwen3", "t5", "whisper", "swin", "deberta")


def test_graphs_of_ten_models_are_those_of_the_overlay(patched, tmp_path):
    copy = torch_copy(tmp_path / "copy", patched)
    code = GRAPHS.format(repo=str(REPO), names=MODELS)
    with_series = run_code(code, path=[copy], TORCH_REGIONS="0", OMP_NUM_THREADS="1").out
    with_overlay = run_code(code, OMP_NUM_THREADS="1").out
    assert len(with_series.splitlines()) == len(MODELS) and with_series == with_overlay


@pytest.fixture(scope="module")
def generic(tmp_path_factory) -> dict[str, str]:
    """Files of torch that the series of gains for any program changes, after `git am` on pristine ones."""
    folder, tree = tmp_path_factory.mktemp("generic"), tmp_path_factory.mktemp("tree")
    names = sorted({f"{row.module.replace('.', '/')}.py" for row in _rows() if row.generic})
    if not names:
        refused = export(folder, "--generic")
        assert refused.code == 1 and "no row that is for this torch release" in refused.err
        pytest.skip("no row that is for this release is generic")
    run_python("-m", "torch_regions", "--root", str(REPO), "export", "--generic", str(folder))
    git(tree, "init", "-q")
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((TORCH.parent / name).read_bytes())
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "pristine")
    git(tree, "am", "-q", *map(str, sorted(folder.iterdir())))
    assert len(list(folder.iterdir())) == len({row.generic for row in _rows() if row.generic})
    assert git(tree, "diff", "--name-only", git(tree, "rev-list", "--max-parents=0", "HEAD").strip()).split() == names
    return {name.removeprefix("torch/"): (tree / name).read_text() for name in names}


def test_gains_for_any_program_need_no_other_file_of_ours(generic):
    for name, text in generic.items():
        by_stock = {getattr(node, "module", None) for node in ast.walk(ast.parse((TORCH / name).read_text()))}
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").startswith("torch.")
                and node.module not in by_stock
            ):
                path = TORCH.parent.joinpath(*node.module.split("."))
                assert path.with_suffix(".py").exists() or path.is_dir() or node.module.startswith("torch._C"), name
            assert not (isinstance(node, ast.Name) and node.id in ("replaces", "stock")), name


ANY_PROGRAM = """
    import torch, torch_regions
    assert torch.__file__.startswith({copy!r}) and not torch_regions.status()
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Conv1d(3, 2, 3))
    inner = torch.compiler.nested_compile_region(lambda x: x.sin() + 1)
    outer = torch.compiler.nested_compile_region(lambda x: inner(inner(x)).cos())
    for program, dynamic in ((net, False), (net, True), (lambda x: outer(outer(x)), False)):
        torch._dynamo.reset()
        compiled, seen = torch.compile(program, dynamic=dynamic), []
        for size in (2, 5):
            for run in (program, compiled):
                x = torch.randn(size, 3, 8, generator=torch.Generator().manual_seed(size), requires_grad=True)
                y = run(x)
                seen.append((y, *torch.autograd.grad(y.square().sum(), x)))
            torch.testing.assert_close(seen[-1], seen[-2])
"""


def test_torch_with_gains_for_any_program_compiles(generic, tmp_path):
    copy = torch_copy(tmp_path / "copy", generic)
    cache = str(tmp_path / "cache")
    code = ANY_PROGRAM.format(copy=str(copy))
    run_code(code, path=[copy], TORCH_REGIONS="0", TORCHINDUCTOR_CACHE_DIR=cache, OMP_NUM_THREADS="1")


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


def test_what_no_replacement_uses_is_not_needed():
    ours = "from a import b, c\n\nA = 1\n# Why.\nB = A\n\n\n@replaces\ndef f():\n    return g()\n\n\n"
    ours += "def g():\n    return c(A)\n\n\n# Gone.\ndef h():\n    return B\n"
    text = _merge.needed(ours)
    assert "A = 1" in text and "def g" in text and "from a" in text
    assert "B = A" not in text and "# Why." not in text and "def h" not in text and "# Gone." not in text


def test_a_module_of_no_system():
    with pytest.raises(OverlayError, match="belongs to no system"):
        _systems.system_of("torch.nowhere")
