"""What one more layer costs to compile, for each backend: marked and found by the flag, over flat.

    python -m benchmarks.backend_cost [--models llama gpt2 bert vit] [--layers 8 32] [--repeat 1]
        [--kinds aot-train inductor-infer inductor-train] [--modes flat marked flag]

Each figure is of a process of its own, which has compiled a small model of the same kind before, so that imports and
lazy set-up are not counted; nothing is read from a compile cache. "flat" runs with ``TORCH_REGIONS=0``. `all` is the
whole first step, Dynamo included; `backend` is from when Dynamo hands its graph over to the end of that step.
CPU time for aot_eager, wall time for Inductor (it waits for the C++ compiler). Best of ``--repeat``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.backends.registry import lookup_backend

from benchmarks.zoo import build, mark_blocks


KINDS = ("aot-train", "inductor-infer", "inductor-train")
MODES = ("flat", "marked", "flag")


def first_step(name: str, kind: str, mode: str, layers: int) -> dict[str, float]:
    """Seconds that the first step takes, and seconds of it after Dynamo."""
    torch._dynamo.reset()
    backend, _, phase = kind.partition("-")
    inner = lookup_backend("aot_eager" if backend == "aot" else backend)
    clock = time.process_time if backend == "aot" else time.perf_counter
    handed_over: list[float] = []

    def timed(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        handed_over.append(clock())
        return inner(gm, inputs)

    example = build(name, layers)
    train = phase == "train"
    example.model.train(train)
    if mode == "marked":
        mark_blocks(name, example.model)
    with torch._dynamo.config.patch(use_graph_deduplication=mode == "flag"), torch.set_grad_enabled(train):
        compiled = torch.compile(example.model, backend=timed, fullgraph=True)
        start = clock()
        result = example.call(compiled)
        if train:
            result.float().pow(2).mean().backward()
        end = clock()
    assert len(handed_over) == 1
    return {"all": end - start, "backend": end - handed_over[0]}


def _measure_here(name: str, kind: str, mode: str, layers: int) -> None:
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        first_step(name, kind, mode, 2)
    with fresh_cache():
        print(json.dumps(first_step(name, kind, mode, layers)))


def measure(name: str, kind: str, mode: str, layers: int) -> dict[str, float]:
    """``first_step`` in a process of its own."""
    environment = {
        **os.environ,
        "TORCH_REGIONS": "0" if mode == "flat" else "strict",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "benchmarks.backend_cost", "--here", name, kind, mode, str(layers)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    if run.returncode:
        raise RuntimeError(f"{name} {kind} {mode} {layers}:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]


def per_layer(name: str, kind: str, mode: str, layers: list[int], repeat: int) -> dict[str, float]:
    """Milliseconds that one more layer costs."""
    runs = [[measure(name, kind, mode, n) for n in layers] for _ in range(repeat)]
    small, large = ({k: min(run[i][k] for run in runs) for k in runs[0][i]} for i in (0, 1))
    return {k: 1000 * (large[k] - small[k]) / (layers[1] - layers[0]) for k in small}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama", "gpt2", "bert", "vit"])
    parser.add_argument("--layers", type=int, nargs=2, default=[8, 32])
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--here", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        name, kind, mode, layers = options.here
        _measure_here(name, kind, mode, int(layers))
        return
    print("model    kind            mode     all ms  ratio   backend ms  ratio   (per extra layer)")
    for name in options.models:
        for kind in options.kinds:
            flat: dict[str, float] = {}
            for mode in sorted(options.modes, key=MODES.index):  # flat first, if it was asked for: the others' ratio
                cost = per_layer(name, kind, mode, options.layers, options.repeat)
                flat = flat or cost
                print(
                    f"{name:8s} {kind:15s} {mode:7s} {cost['all']:7.1f} {cost['all'] / flat['all']:6.2f}"
                    f" {cost['backend']:12.1f} {cost['backend'] / flat['backend']:6.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
