"""`python -m torch_regions explain`: runs a program, and says what it compiled.

The program runs in a process of its own, with its own standard streams and exit status; that process and those that it
starts write what they compile to a folder (record.py), which is read when the program has ended, however it did.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import torch_regions._report.collect as _collect
import torch_regions._report.record as _record
from torch_regions._activate import EXPLAIN
from torch_regions._report import Report


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

# Signals that ask a program to end, and reach only the process that they are sent to.
_PASSED_ON = ("SIGTERM", "SIGHUP")


def explain(
    program: Sequence[str],
    json_file: str | None = None,
    html_file: str | None = None,
    merge: bool = False,
    flag: bool = False,
) -> int:
    """Runs ``program``, which are arguments of Python; returns its exit status, 128 + n where signal n ended it.

    ``merge``: one file for all processes, not one for each that compiled something.  ``flag`` turns the flag on.
    """
    for file in (json_file, html_file):
        if file is not None and not os.path.isdir(os.path.dirname(os.path.abspath(file))):
            raise OSError(f"there is no folder for {file}")
    with tempfile.TemporaryDirectory(prefix="torch_regions_") as folder:
        environment = {**os.environ, EXPLAIN: folder}
        if flag:
            environment["TORCHDYNAMO_USE_GRAPH_DEDUPLICATION"] = "1"
        pid, status = _run([sys.executable, *program], environment)
        processes = _processes(folder, pid, list(program))
    if status < 0:
        print(f"the program was ended by {_signal_name(-status)}; this is what it had compiled", file=sys.stderr)
    _show(Report(_data(processes)))
    for file, text in ((json_file, _json), (html_file, Report.html)):
        if file is not None:
            for name, data in _files(file, processes, merge):
                with open(name, "w", encoding="utf-8") as stream:
                    stream.write(text(Report(data)))
    return status if status >= 0 else 128 - status


def _json(report: Report) -> str:
    return json.dumps(report.data, indent=1) + "\n"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _run(command: list[str], environment: dict[str, str]) -> tuple[int, int]:
    """The id of the process that ran ``command``, and its exit status as Popen has it."""
    with _waiting() as children:
        child = subprocess.Popen(command, env=environment)
        children.append(child)
        return child.pid, child.wait()


@contextlib.contextmanager
def _waiting() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Meanwhile, signals that ask this process to end go to the children.  Ctrl-C reaches them by itself."""
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    before: dict[int, Any] = {signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None)}
    for name in _PASSED_ON:
        if hasattr(signal, name):
            number = getattr(signal, name)
            before[number] = signal.signal(number, pass_on)
    try:
        yield children
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _processes(folder: str, pid: int, command: list[str]) -> list[dict[str, Any]]:
    """The program's process first, then each other one that compiled something."""
    found = _record.read(folder)
    plain: dict[str, Any] = {"pid": pid, "command": command, "rank": None, "torch": None}
    plain |= {"overlay": None, "why": "", "reasons": {}}
    main = next((each for each in found if each["pid"] == pid), _collect.assemble(plain, [], [], []))
    others = [each for each in found if each["pid"] != pid and each["compiles"]]
    # A launcher of others has nothing to say for itself.
    return [main, *others] if main["compiles"] or not others else others


def _data(processes: list[dict[str, Any]]) -> dict[str, Any]:
    return {"schema": _collect.SCHEMA, "processes": processes}


def _files(file: str, processes: list[dict[str, Any]], merge: bool) -> list[tuple[str, dict[str, Any]]]:
    """Name and data of each file: `out.json`, and `out.<pid>.json` for each process behind the first."""
    if merge:
        return [(file, _data(processes))]
    stem, ending = os.path.splitext(file)
    names = [file, *(f"{stem}.{process['pid']}{ending}" for process in processes[1:])]
    return [(name, _data([process])) for name, process in zip(names, processes, strict=True)]


def _show(report: Report) -> None:
    """Prints a report to standard error: standard output is the program's."""
    try:
        from rich.console import Console
    except ImportError:
        print(report, file=sys.stderr)
    else:
        Console(stderr=True, soft_wrap=True, highlight=False).print(report)
