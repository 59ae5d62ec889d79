"""The overlay as a series of patches for torch's source tree, for ``git am``: one for each system, with its tests."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch_regions._merge as _merge
import torch_regions._systems as _systems
from torch_regions._errors import OverlayError


if TYPE_CHECKING:
    from torch_regions._manifest import Manifest, Replacement
    from torch_regions._verify import StockSources

_AUTHOR = ("torch-regions", "torch-regions@invalid")
# The folder of the series' tests in torch's tree, and the folders under `test/` that they come from
_TESTS = "test/regions"
_TEST_FOLDERS = ("testing", "dynamo", "functorch", "fx", "higher_order_ops", "inductor", "subclasses", "utils")
_PYTEST = "[pytest]\npythonpath = .\naddopts = --import-mode=importlib\n"
# A test that imports one of these is not part of the series.
_OURS = re.compile(r"^\s*(?:from|import) (?:torch_regions|benchmarks)\b", re.MULTILINE)
_HELPERS = re.compile(r"^\s*from testing(?:\.(\w+) import| import (\w+))", re.MULTILINE)
_GENERIC = "It has to do with regions no more than stock has, and needs no other patch."
_DATE = "2026-01-01T00:00:00+0000"  # fixed, so that equal overlays give equal patches


@dataclass
class _Patch:
    system: _systems.System
    rows: list[Replacement] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # path in torch's source tree -> text
    tests: list[str] = field(default_factory=list)  # the paths under `test/` of the tests among the files


def patches(manifest: Manifest, files: dict[str, str], sources: StockSources) -> tuple[list[_Patch], dict[str, str]]:
    """The patches, and the stock texts of the files that they change."""
    found = {system: _Patch(system) for system in _systems.SYSTEMS}
    stock_texts: dict[str, str] = {}
    for module, ours in sorted(files.items()):
        rows = [row for row in manifest.rows if row.module == module]
        if not rows:
            continue  # the whole file is for other releases
        patch = found[_systems.system_of(module)]
        patch.rows += rows
        stock = sources.path(module)
        path = f"{module.replace('.', '/')}{'/__init__' if ours.endswith('__init__.py') else ''}.py"
        text = _read(ours)
        if stock is not None:
            stock_texts[path] = _read(stock)
        if any(row.kind == "symbol" for row in rows):
            text = _merge.merge(stock_texts[path], _merge.only(text, {row.symbol for row in rows}), module)
        patch.files[path] = text
    return [patch for patch in found.values() if patch.files], stock_texts


def generic_patches(
    manifest: Manifest, files: dict[str, str], sources: StockSources
) -> tuple[list[_Patch], dict[str, str]]:
    """The patches of the rows that are gains or fixes without regions too, and the stock texts."""
    found: dict[str, _Patch] = {}
    stock_texts: dict[str, str] = {}
    for row in manifest.rows:
        if row.generic:
            patch = found.setdefault(row.generic, _Patch(_systems.System(row.generic, _GENERIC, (), ())))
            patch.rows.append(row)
    if not found:
        raise OverlayError("no row that is for this torch release is a gain or a fix without regions")
    for patch in found.values():
        for module in sorted({row.module for row in patch.rows}):
            path = f"{module.replace('.', '/')}.py"
            stock = sources.path(module)
            if stock is None or path in stock_texts:
                raise OverlayError(f"the generic rows of {module} must be of a stock module, and in one patch")
            stock_texts[path] = _read(stock)
            symbols = {row.symbol for row in patch.rows if row.module == module}
            ours = _merge.needed(_merge.only(_read(files[module]), symbols))
            patch.files[path] = _merge.merge(stock_texts[path], ours, module)
    return list(found.values()), stock_texts


def add_tests(series: list[_Patch], root: str) -> None:
    """Adds each test under `root` to the patch that it tests, and the helpers to the first patch."""
    texts = _test_texts(root)
    for path, text in texts.items():
        is_test = path.rpartition("/")[2].startswith("test_")
        wanted = _systems.system_of_test(path) if is_test else series[0].system
        patch = next(patch for patch in series if patch.system is wanted)
        patch.files[f"{_TESTS}/{path}"] = text
        if is_test:
            patch.tests.append(path)
    if any(patch.tests for patch in series):
        series[0].files[f"{_TESTS}/pytest.ini"] = _PYTEST


def _test_texts(root: str) -> dict[str, str]:
    """Tests of regions and their helpers, by path under `test/`, without those that need the loader or a benchmark."""
    texts = {path: _read(os.path.join(root, "test", *path.split("/"))) for path in _test_files(root)}
    left_out = {path for path, text in texts.items() if _OURS.search(text)}
    while more := {path for path in texts.keys() - left_out if _helpers_of(texts[path]) & left_out}:
        left_out |= more
    return {path: text for path, text in texts.items() if path not in left_out}


def _helpers_of(text: str) -> set[str]:
    return {f"testing/{of or name}.py" for of, name in _HELPERS.findall(text)}


def _test_files(root: str) -> list[str]:
    found = ["conftest.py"] if os.path.isfile(os.path.join(root, "test", "conftest.py")) else []
    for folder in _TEST_FOLDERS:
        for where, _, names in sorted(os.walk(os.path.join(root, "test", folder))):
            here = os.path.relpath(where, os.path.join(root, "test")).replace(os.sep, "/")
            found += [f"{here}/{name}" for name in sorted(names) if name.endswith(".py")]
    return found


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as stream:
        return stream.read()


def _message(patch: _Patch) -> str:
    lines = [patch.system.title, "", *textwrap.wrap(patch.system.why, 72, break_on_hyphens=False), ""]
    for row in patch.rows:
        lines += textwrap.wrap(f"{row.target}: {row.purpose}", 72, initial_indent="- ", subsequent_indent="  ")
        if row.always:
            why = f"It runs without regions too: {row.always}"
            lines += textwrap.wrap(why, 72, initial_indent="  ", subsequent_indent="  ")
    if patch.tests:
        lines += ["", "Tests:", *(f"- {_TESTS}/{path}" for path in patch.tests)]
    return "\n".join(lines) + "\n"


def _write(folder: str, texts: dict[str, str]) -> None:
    for path, text in texts.items():
        full = os.path.join(folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as stream:
            stream.write(text)


def export(
    target: str,
    manifest: Manifest,
    files: dict[str, str],
    sources: StockSources,
    release: str,
    force: bool = False,
    root: str | None = None,
    generic: bool = False,
) -> list[str]:
    """Writes the series into the folder ``target``; returns the names of its files, in order.

    With ``root``, the patches include the tests in its folder ``test``.  With ``generic``, the series has only the rows
    that are gains or fixes for any program, and no tests.

    Raises ``OverlayError``, and writes nothing, if an extension cannot be written into its module, if git is missing or
    fails, or if something else has the name of a patch and ``force`` is not set.
    """
    series, stock_texts = (generic_patches if generic else patches)(manifest, files, sources)
    if root is not None and not generic:
        add_tests(series, root)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as made:
        _git(folder, "init", "-q")
        _write(folder, stock_texts)
        _commit(folder, f"torch {release}\n")
        for patch in series:
            _write(folder, patch.files)
            _commit(folder, _message(patch))
        options = ("--no-signature", "--zero-commit", "--no-stat")
        output = _git(folder, "format-patch", *options, "-o", made, f"HEAD~{len(series)}")
        contents = {os.path.basename(line): _read_bytes(line) for line in output.splitlines()}
    os.makedirs(target, exist_ok=True)
    for name, content in contents.items():
        _check_free(os.path.join(target, name), content, force)
    for name, content in contents.items():
        _replace(os.path.join(target, name), content)
    return list(contents)


def _check_free(path: str, content: bytes, force: bool) -> None:
    """Raises ``OverlayError`` if ``path`` has something other than ``content``; under ``force``, if it is a folder."""
    if not os.path.lexists(path):
        return
    if os.path.islink(path):
        found = f"a link to {os.readlink(path)}"
    elif os.path.isdir(path):
        raise OverlayError(f"nothing is exported: {path} is a folder. Move it away, or export into another folder")
    elif os.path.isfile(path) and _read_bytes(path) == content:
        return
    else:
        found = "a file with another content" if os.path.isfile(path) else "no plain file"
    if not force:
        raise OverlayError(
            f"nothing is exported: {path} is {found}. Export into an empty folder, or replace it with --force"
        )


def _read_bytes(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()


def _replace(path: str, content: bytes) -> None:
    """Writes a file in place of what has its name. If that is a link, the target of the link stays as it is."""
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _commit(folder: str, message: str) -> None:
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "--no-verify", "-m", message)


def _git(folder: str, *arguments: str) -> str:
    name, mail = _AUTHOR
    people = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in
              (("NAME", name), ("EMAIL", mail), ("DATE", _DATE))}  # fmt: skip
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | people | alone
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, env=environment)
    except OSError as error:
        raise OverlayError(f"export needs git: {error}") from error
    if done.returncode:
        raise OverlayError(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout
