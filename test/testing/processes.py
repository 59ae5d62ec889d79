"""Programs that compile into a cache folder, each run in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch_regions


HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
TIMEOUT = 400


def start(program: str, folder: Path, *arguments: object, prepare=None, **env: str) -> subprocess.Popen[str]:
    """Starts a program of this directory; it finds the overlay that this process has."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCH")}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment |= {"TORCH_REGIONS": "strict", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": os.pathsep.join((str(HERE.parent), os.environ.get("PYTHONPATH", ""))), **env}
    command = [sys.executable, str(HERE / program), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, preexec_fn=prepare)


def finish(process: subprocess.Popen[str]) -> tuple[dict[str, Any], list[str]]:
    """What the program told, and the warnings: one line each."""
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, out + err
    told = json.loads(out.splitlines()[-1])
    # A child that ran another overlay, or none, would have tested that one.
    assert told.pop("overlay") == [torch_regions.__file__, True]
    return told, [line for line in err.splitlines() if re.match(r"[WE]\d{4} ", line)]


def tell(**told: Any) -> None:
    """Prints the last line of a program."""
    print(json.dumps({"overlay": [torch_regions.__file__, bool(torch_regions.status())], **told}))


def cache_counts() -> dict[str, int]:
    """What AOTAutogradCache counted in this process."""
    from torch._dynamo.utils import counters

    return {name: counters["aot_autograd"][f"autograd_cache_{name}"] for name in ("hit", "miss", "bypass")}
