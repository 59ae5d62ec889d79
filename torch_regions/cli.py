"""`python -m torch_regions status | explain | reasons | verify | diff | export | refresh`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import torch_regions._activate as _activate
import torch_regions._diff as _diff
import torch_regions._export as _export
import torch_regions._lint as _lint
import torch_regions._manifest as _manifest
import torch_regions._refresh as _refresh
import torch_regions._verify as _verify
from torch_regions._errors import OverlayError
from torch_regions._files import overlay_files
from torch_regions._status import status


if TYPE_CHECKING:
    from collections.abc import Sequence


def _console() -> Any:
    """A rich console, or None when rich is not installed."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(soft_wrap=True, highlight=False)


def _say(text: str, style: str | None = None) -> None:
    console = _console()
    if console is None:
        print(text)
    else:
        console.print(text, style=style, markup=False)


def _fail(text: str) -> None:
    print(f"torch-regions: {text}", file=sys.stderr)


def _torch_dir(against: str | None) -> tuple[str, str]:
    """Folder and version of torch: the running one, or the one that is installed at `against`."""
    if against is None:
        import torch

        return os.path.dirname(os.path.abspath(torch.__file__)), torch.__version__
    for folder in (os.path.join(against, "torch"), against):
        try:
            with open(os.path.join(folder, "version.py"), encoding="utf-8") as stream:
                found = re.search(r"^__version__ = ['\"](.+)['\"]$", stream.read(), re.MULTILINE)
        except OSError:
            continue
        if found is not None:
            return os.path.abspath(folder), found[1]
    raise OSError(f"{against} is neither torch's folder nor one that torch is installed in")


def _status(root: str) -> int:
    found = status()
    _say(f"overlay  {'on' if found.active else 'off'}: {found.reason}", "green" if found.active else "yellow")
    _say(f"torch    {found.torch_release}")
    _say(f"files    {found.root}")
    if found.digest:
        _say(f"digest   {found.digest}")
    for group, why in found.left_out.items():
        _say(f"{group:<8} off: {why}", "yellow")
    for row in found.rows:
        _say(f"\n{row.target}  ({row.kind})", "bold")
        _say(f"    {row.purpose}")
        _say(f"    remove when: {row.remove_when}")
    for holder in found.stale:
        _say(f"still holds a stock object: {holder}", "red")
    return 0


def _verify_command(root: str, against: str | None = None) -> int:
    torch_dir, version = _torch_dir(against)
    files = overlay_files(root)
    manifest = _manifest.load(os.path.join(root, _manifest.NAME))
    problems = [str(mismatch) for mismatch in _verify.verify(files, manifest, torch_dir, version)]
    release = _verify.base_release(version)
    problems += _lint.lint(files, manifest, _verify.StockSources(torch_dir), release)
    for problem in dict.fromkeys(problems):
        _say(problem, "red")
    if not problems:
        there = manifest.on(release)
        uses = len(there.hashes())
        _say(f"{len(there.rows)} rows and {uses} stock definitions match torch {version}", "green")
    return 1 if problems else 0


def _diff_command(root: str, only: Sequence[str], against: str | None) -> int:
    torch_dir, _ = _torch_dir(against)
    files = overlay_files(root)
    manifest = _manifest.load(os.path.join(root, _manifest.NAME))
    known = {row.target for row in manifest.rows}
    for target in only:
        if target not in known:
            _fail(f"the manifest has no row '{target}'")
            return 2
    sources = _verify.StockSources(torch_dir)
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for row in manifest.rows:
        if only and row.target not in only:
            continue
        if row.module not in files:
            _fail(f"{row.target} has no overlay file")
            return 1
        _say(f"# {row.target}: {row.purpose}", "bold")
        for line in _diff.diff(row, files[row.module], sources):
            _say(line, styles.get(line[:1]))
    return 0


def _export_command(root: str, target: str, force: bool, generic: bool) -> int:
    torch_dir, version = _torch_dir(None)
    if _verify_command(root):
        return 1
    manifest = _manifest.load(os.path.join(root, _manifest.NAME)).on(_verify.base_release(version))
    sources = _verify.StockSources(torch_dir)
    for name in _export.export(target, manifest, overlay_files(root), sources, version, force, root, generic):
        _say(os.path.join(target, name))
    return 0


def _refresh_command(root: str, against: str | None) -> int:
    try:
        import tomlkit  # noqa: F401
    except ImportError:
        _fail("refresh needs tomlkit: pip install 'torch-regions[cli]'")
        return 2
    torch_dir, version = _torch_dir(against)
    for remark in _refresh.refresh(root, torch_dir, version):
        _say(remark, "yellow")
    _say(f"{os.path.join(root, _manifest.NAME)} matches torch {version}", "green")
    return 0


def _explain_command(parsed: Any) -> int:
    from torch_regions._report.explain import explain

    if not parsed.program:
        _fail("explain needs a program: script.py, or -m module")
        return 2
    program = ["-m", *parsed.program] if parsed.module else parsed.program
    try:
        return explain(program, parsed.json, parsed.html, parsed.merge, parsed.flag)
    except OSError as error:
        _fail(str(error))
        return 2


def _reasons_command(names: Sequence[str]) -> int:
    from torch_regions._report.advice import REASONS

    found = status()
    if not found.active:
        _fail(f"the overlay is off, and has no reasons then: {found.reason}")
        return 1
    wanted = [name.upper() for name in names]
    if unknown := [name for name in wanted if not any(name in reasons.advice for reasons in REASONS)]:
        _fail(f"no reason is called {unknown[0]!r}; `python -m torch_regions reasons` shows all of them")
        return 2
    for reasons in REASONS:
        shown = [each for each in reasons.causes().items() if not wanted or each[0] in wanted]
        if shown:
            _say(reasons.question, "bold")
        for name, cause in shown:
            _say(f"  {name}: {cause}")
            _say(f"    {reasons.advice[name]}", "dim")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_regions", description="The overlay over the installed torch."
    )
    parser.add_argument("--root", help="folder with manifest.toml and torch/ (default: the installed overlay)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("status", help="is the overlay on in a process like this one, and what is in it")
    verify = commands.add_parser(
        "verify", help="compare manifest, overlay files and installed torch; exit 1 on a mismatch"
    )
    diff = commands.add_parser("diff", help="stock against ours, for each replacement")
    diff.add_argument("target", nargs="*", help="rows to show (default: all)")
    export = commands.add_parser("export", help="write the overlay as patches for torch's source tree, for git am")
    export.add_argument("directory", help="where to write them")
    export.add_argument("--force", action="store_true", help="replace files and links that have the name of a patch")
    export.add_argument(
        "--generic", action="store_true", help="only what is a gain or a fix for programs without regions"
    )
    explain = commands.add_parser(
        "explain",
        help="run a program and say what it compiled once, what not, and why",
        usage="%(prog)s [--json FILE] [--html FILE] [--merge] [--flag] (script.py | -m module) [arguments ...]",
    )
    explain.add_argument(
        "--json", metavar="FILE", help="write the report there, as torch_regions/_report/schema.json says"
    )
    explain.add_argument("--html", metavar="FILE", help="write it there as a page")
    explain.add_argument(
        "--merge",
        action="store_true",
        help="one file for all processes (default: FILE, and one for each other process)",
    )
    explain.add_argument("--flag", action="store_true", help="turn the flag on in the program")
    explain.add_argument("-m", action="store_true", dest="module", help="the program is a module")
    explain.add_argument("program", nargs=argparse.REMAINDER, help="the program, and its arguments")
    reasons = commands.add_parser("reasons", help="what a reason in a report or a warning means, and what to do")
    reasons.add_argument("reason", nargs="*", help="names, as GUARD_FAILS (default: all)")
    refresh = commands.add_parser("refresh", help="write the hashes in manifest.toml anew for the installed torch")
    for command in (verify, diff, refresh):
        command.add_argument("--against", metavar="PATH", help="a torch that is installed there, not the running one")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0 on success, 1 on a mismatch or a bad file, 2 if it cannot be carried out."""
    parsed = _parser().parse_args(arguments)
    root = os.path.abspath(parsed.root) if parsed.root else _activate.default_root()
    try:
        if parsed.command == "status":
            if parsed.root:
                _activate.activate(root)
            return _status(root)
        if parsed.command == "explain":
            return _explain_command(parsed)
        if parsed.command == "reasons":
            return _reasons_command(parsed.reason)
        if parsed.command == "verify":
            return _verify_command(root, parsed.against)
        if parsed.command == "diff":
            return _diff_command(root, parsed.target, parsed.against)
        if parsed.command == "export":
            return _export_command(root, parsed.directory, parsed.force, parsed.generic)
        return _refresh_command(root, parsed.against)
    except OverlayError as error:
        _fail(str(error))
        return 1
    except (OSError, SyntaxError) as error:
        _fail(str(error))
        return 1
    except BrokenPipeError:
        return 0
