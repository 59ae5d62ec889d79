"""Runs searches in forked processes: torch is imported once, and a program that ends its process is a find.

``python test/fuzz/fuzz_workers.py`` is what ``make fuzz`` runs.  Environment: FUZZ_SECONDS, FUZZ_SEED, FUZZ_BACKEND,
FUZZ_JOBS, FUZZ_FINDS, FUZZ_SEARCHES.
"""

from __future__ import annotations

import collections
import json
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parent))

import pytest  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402
from fuzz_finds import crash, is_known, write  # noqa: E402
from fuzz_oracle import MODES, clean  # noqa: E402
from fuzz_program import Program, from_json  # noqa: E402
from fuzz_search import CHUNK, Search  # noqa: E402


# A program that computes for longer has hung, and one that waits for ten times as long. A busy machine is no find.
_SECONDS_A_PROGRAM = 120
_TALLIES = ("run", "discarded", "failed", "reused", "reasons")


@dataclass
class Options:
    """What a run of the fuzzer is asked for."""

    seconds: float
    seed: int
    backend: str
    jobs: int
    finds: Path
    most: int  # searches in all

    @staticmethod
    def from_environment() -> Options:
        finds = os.environ.get("FUZZ_FINDS") or tempfile.mkdtemp(prefix="fuzz_finds_")
        return Options(
            float(os.environ.get("FUZZ_SECONDS", "60")),
            int(os.environ.get("FUZZ_SEED", "0")),
            os.environ.get("FUZZ_BACKEND", "eager"),
            int(os.environ.get("FUZZ_JOBS", "2")),
            Path(finds),
            int(os.environ.get("FUZZ_SEARCHES", 10**9)),
        )


def modes_of(number: int) -> tuple[str, ...]:
    """The modes take turns: another program shows more than the same one in another mode."""
    return (MODES[number % len(MODES)],)


def quiet(patch: pytest.MonkeyPatch) -> None:
    """What a process that runs programs needs."""
    torch.set_num_threads(1)
    patch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    # Dynamo measures each guard tree for a log, which takes as long as a small program.
    patch.setattr(torch._dynamo.guards, "profile_guard_manager", lambda *a: 0.0)


def _search(number: int, options: Options, until: float, running: Path, report: Path) -> None:
    def before(program: Program, mode: str) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS_A_PROGRAM)
        signal.alarm(10 * _SECONDS_A_PROGRAM)
        running.write_text(json.dumps([mode, program.to_json()]))

    search = Search(modes_of(number), options.backend, lambda k, t: is_known(options.finds, k, t), until, before)
    try:
        search.go(options.seed * 1_000_003 + number, CHUNK)
        if search.find is not None:
            write(search.find, options.finds)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.alarm(0)
        tallies = {name: dict(getattr(search, name)) for name in _TALLIES}
        report.write_text(json.dumps(tallies))


def _child(number: int, options: Options, until: float, running: Path, report: Path) -> None:
    code = 0
    out = os.open(os.devnull, os.O_WRONLY)
    os.dup2(out, 1)
    try:
        quiet(pytest.MonkeyPatch())
        _search(number, options, until, running, report)
        clean()
    except BaseException:
        traceback.print_exc()
        code = 3
    os._exit(code)


@dataclass
class Result:
    """What all searches of a run have seen."""

    tallies: dict[str, collections.Counter]
    finds: dict[Path, int]  # each, and how many programs were run by then
    broken: int
    seconds: float

    def lines(self) -> list[str]:
        t = self.tallies
        found = [
            f"{mode:12} {t['run'][mode]:6} run, {t['discarded'][mode]:5} discarded, {t['failed'][mode]:4} failed, "
            f"{t['reused'][mode]:5} with reuse"
            for mode in MODES
            if t["run"][mode]
        ]
        total = sum(t["run"].values())
        found.append(f"{total} programs in {self.seconds:.0f} s, {total / max(self.seconds, 1e-9):.2f} a second")
        found += [f"discarded: {why} ({n})" for why, n in t["reasons"].most_common(6)]
        return found


def fuzz(options: Options) -> Result:
    """Searches until the time is over, in ``options.jobs`` processes at once."""
    options.finds.mkdir(parents=True, exist_ok=True)
    before = set(options.finds.glob("*.py"))
    start = time.monotonic()
    until, scratch = start + options.seconds, Path(tempfile.mkdtemp())
    tallies = {name: collections.Counter() for name in _TALLIES}
    children: dict[int, int] = {}
    finds: dict[Path, int] = {}
    number = broken = 0
    while True:
        while len(children) < options.jobs and time.monotonic() < until and number < options.most:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                _child(number, options, until, scratch / f"running{number}", scratch / f"report{number}")
            children[pid] = number
            number += 1
        if not children:
            break
        pid, status = os.wait()
        done = children.pop(pid, None)
        if done is None:
            continue
        report, running = scratch / f"report{done}", scratch / f"running{done}"
        if report.exists():
            for name, counts in json.loads(report.read_text()).items():
                tallies[name].update(counts)
        if os.WIFSIGNALED(status):
            mode, spec = json.loads(running.read_text())
            how = f"ended by signal {os.WTERMSIG(status)}"
            crash(from_json(spec), mode, options.backend, options.finds, how)
        broken += os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
        for path in sorted(set(options.finds.glob("*.py")) - before):
            finds.setdefault(path, sum(tallies["run"].values()))
    return Result(tallies, finds, broken, time.monotonic() - start)


def main() -> int:
    options = Options.from_environment()
    print(f"finds go to {options.finds}")
    result = fuzz(options)
    print("\n".join(result.lines()))
    for path, after in result.finds.items():
        print(f"found after {after} programs:", path.name, "|", path.read_text().split("\n", 3)[2][:160])
    if result.broken:
        print(f"{result.broken} searches ended by an error of the fuzzer")
    return int(bool(result.finds or result.broken))


if __name__ == "__main__":
    sys.exit(main())
