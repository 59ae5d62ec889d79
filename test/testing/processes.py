"""Programs that compile into a cache folder, each run in a process of its own."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch_regions

from . import vectors


HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
TIMEOUT = 400


def _environment(folder: Path | None = None, **env: str) -> dict[str, str]:
    environment = vectors.environment_without("TORCH")
    if folder is not None:
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    environment |= {"TORCH_REGIONS": "strict", "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return environment | {"PYTHONPATH": os.pathsep.join((str(HERE.parent), os.environ.get("PYTHONPATH", ""))), **env}


def start(program: str, folder: Path, *arguments: object, prepare=None, **env: str) -> subprocess.Popen[str]:
    """Starts a program of this directory anew; it finds the overlay that this process has."""
    command = [sys.executable, str(HERE / f"{program}.py"), *map(str, arguments)]
    pipe, environment = subprocess.PIPE, _environment(folder, **env)
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, preexec_fn=prepare)


class _Zygote:
    """Processes that fork from one that has imported torch.  Each zygote has its own order of sets of strings."""

    def __init__(self, seed: int) -> None:
        pipe, environment = subprocess.PIPE, _environment(PYTHONHASHSEED=str(seed))
        command = [sys.executable, str(HERE / "zygote.py")]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        atexit.register(self._end)

    def _end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def ask(self, **request: Any) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


class Forked:
    """A program that runs in a process which forked from a zygote; as far as ``finish`` needs it, a ``Popen``."""

    def __init__(self, zygote: _Zygote, program: str, folder: Path, *arguments: object) -> None:
        self.zygote, self.texts = zygote, Path(tempfile.mkdtemp())
        self.out, self.err = self.texts / "out", self.texts / "err"
        paths = {"out": str(self.out), "err": str(self.err)}
        self.id = zygote.ask(run=program, arguments=[*map(str, arguments)], environment=_environment(folder), **paths)
        self.returncode: int | None = None

    def communicate(self, timeout: float) -> tuple[str, str]:
        timer = threading.Timer(timeout, os.kill, (self.id, signal.SIGKILL))
        timer.start()
        self.returncode = self.zygote.ask(wait=self.id)
        timer.cancel()
        texts = self.out.read_text(), self.err.read_text()
        shutil.rmtree(self.texts)
        return texts


@functools.cache
def _zygotes() -> Iterator[_Zygote]:
    return itertools.cycle([_Zygote(seed) for seed in (1, 2)])


def fork(program: str, folder: Path, *arguments: object) -> Forked:
    """As ``start``, without the time that imports take.  A program and the next one have other seeds for hashes."""
    return Forked(next(_zygotes()), program, folder, *arguments)


def finish(process: subprocess.Popen[str] | Forked) -> tuple[dict[str, Any], list[str]]:
    """What the program told, and the warnings: one line each."""
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, out + err
    told = json.loads(out.splitlines()[-1])
    # A child that ran another overlay, or none, would have tested that one.
    assert told.pop("overlay") == [torch_regions.__file__, True]
    # A CUDA build says on a machine without a GPU that it is one.
    lines = [line for line in err.splitlines() if "No CUDA runtime is found" not in line]
    return told, [line for line in lines if re.match(r"[WE]\d{4} ", line)]


def tell(**told: Any) -> None:
    """Prints the last line of a program."""
    print(json.dumps({"overlay": [torch_regions.__file__, bool(torch_regions.status())], **told}))


def cache_counts() -> dict[str, int]:
    """What AOTAutogradCache counted in this process."""
    from torch._dynamo.utils import counters

    return {name: counters["aot_autograd"][f"autograd_cache_{name}"] for name in ("hit", "miss", "bypass")}
