"""The modes that benchmarks compare, processes that measure one of them, and what a table says of itself.

stock flat     ``TORCH_REGIONS=0``: torch as it is installed
overlay flat   the overlay is there, the program has neither flag nor mark
flag           ``torch._dynamo.config.use_graph_deduplication``
mark           each repeated block is marked with ``torch.compiler.nested_compile_region``

Those of ``COMPARED`` are what a user can choose from: flag and mark with the overlay, and without it stock flat, and

stock flag         the flag of torch as it is installed
stock mark         its mark
per-block compile  each repeated block is compiled by itself, as accelerate and diffusers do
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch


MODES = ("stock flat", "overlay flat", "flag", "mark")
STOCK_FLAT, OVERLAY_FLAT, FLAG, MARK = MODES
# Without the overlay.
OF_STOCK = ("stock flat", "stock flag", "stock mark", "per-block compile")
_, STOCK_FLAG, STOCK_MARK, PER_BLOCK = OF_STOCK
COMPARED = (*OF_STOCK, FLAG, MARK)


def environment(mode: str, **more: str) -> dict[str, str]:
    """Environment variables of a process that compiles in ``mode``."""
    return {
        **os.environ,
        "TORCH_REGIONS": "0" if mode in OF_STOCK else "strict",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def options_of_rows(doc: str | None, rows: Iterable[str], backend: str, repeat: int) -> argparse.ArgumentParser:
    """The options of a benchmark whose table has a line for each of ``rows``, with its defaults."""

    def row(name: str) -> str:
        if name not in known:
            raise argparse.ArgumentTypeError(f"no row {name!r}; the rows are: {', '.join(map(repr, known))}")
        return name

    known = [*rows]
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", nargs="*", type=row, help="all when none is named")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--backend", default=backend)
    parser.add_argument("--repeat", type=int, default=repeat)
    parser.add_argument("--out", type=Path)
    return parser


def equality(values: list[Any], expected: list[Any], **tolerance: float) -> str:
    """``bits``, ``close`` as torch.testing has it, or ``NO``, of lists of numbers and of lists of them."""
    if values == expected:
        return "bits"
    try:
        for one, other in zip(values, expected, strict=True):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other), **tolerance)
    except (AssertionError, ValueError):
        return "NO"
    return "close"


def in_turns(modes: list[str], turns: int) -> Iterator[str]:
    """Each mode once a turn.  Another one begins each turn, so that no mode always follows the same one."""
    for turn in range(turns):
        first = turn % len(modes)
        yield from modes[first:] + modes[:first]


class Worker:
    """A process that measures in one mode: ``python -m MODULE --serve MODE ...``, an answer for each request.

    Both are JSON, a line each.  ``serve`` is the other side.
    """

    def __init__(self, module: str, mode: str, *arguments: str, **more: str) -> None:
        command = [sys.executable, "-m", module, "--serve", mode, *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, text=True, env=environment(mode, **more), stdin=pipe, stdout=pipe)

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.process.args}: ended with {self.process.wait()}, its errors are above")
        return json.loads(answer)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(answer: Any) -> None:
    """Answers requests by ``answer(**request)`` until there are no more."""
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


def conditions() -> str:
    """Machine, releases and command: the first line of a file of figures."""
    from importlib.metadata import version

    spec = sys.modules["__main__"].__spec__
    program = ["-m", spec.name] if spec is not None else [os.path.basename(sys.argv[0])]
    words = sys.argv[1:]
    if "--out" in words:  # where the figures went is of no interest
        del words[words.index("--out") : words.index("--out") + 2]
    command = shlex.join(["python", *program, *words])
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return (
        f"`{command}`, torch {version('torch')}, Python {platform.python_version()}, {_processor()}, "
        f"{os.cpu_count()} cores, load {load}."
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
