"""What one more layer costs to compile, for each backend, in each mode of ``benchmarks/modes.py``.

    python -m benchmarks.backend_cost [--models llama gpt2 bert vit] [--layers 8 32] [--repeat 3]
        [--kinds eager-infer aot-train inductor-infer inductor-train] [--modes "stock flat" "overlay flat" flag mark]

Each mode has a process of its own, that has compiled a small model of the same kind before, so that imports and lazy
set-up are not counted; nothing is read from a compile cache. A ratio is over the first mode's. The processes take
turns, figure by figure, so that a slow minute of the machine is one for all of them. `all` is the whole first step,
Dynamo included; `backend` is from when Dynamo hands its graph over to the end of that step. CPU time for eager and
aot_eager, wall time for Inductor (it waits for the C++ compiler). From the least of ``--repeat`` turns for each size,
and in brackets from the medians.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.backends.registry import lookup_backend

from benchmarks.modes import FLAG, MARK, MODES, Worker, conditions, in_turns, serve
from benchmarks.zoo import build, mark_blocks


KINDS = ("eager-infer", "aot-train", "inductor-infer", "inductor-train")
PARTS = ("all", "backend")


def first_step(name: str, kind: str, mode: str, layers: int) -> dict[str, float]:
    """Seconds that the first step takes, and seconds of it after Dynamo."""
    torch._dynamo.reset()
    backend, _, phase = kind.partition("-")
    inner = lookup_backend("aot_eager" if backend == "aot" else backend)
    clock = time.perf_counter if backend == "inductor" else time.process_time
    handed_over: list[float] = []

    def timed(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        handed_over.append(clock())
        return inner(gm, inputs)

    example = build(name, layers)
    train = phase == "train"
    example.model.train(train)
    if mode == MARK:
        mark_blocks(name, example.model)
    with torch._dynamo.config.patch(use_graph_deduplication=mode == FLAG), torch.set_grad_enabled(train):
        compiled = torch.compile(example.model, backend=timed, fullgraph=True)
        start = clock()
        result = example.call(compiled)
        if train:
            result.float().pow(2).mean().backward()
        end = clock()
    assert len(handed_over) == 1
    return {"all": end - start, "backend": end - handed_over[0]}


def _serve(mode: str, name: str, kind: str) -> None:
    """Answers each number of layers with the cost of its first step."""
    from torch._inductor.utils import fresh_cache

    def answer(layers: int) -> dict[str, float]:
        gc.collect()
        with fresh_cache():
            return first_step(name, kind, mode, layers)

    answer(2)
    serve(answer)


def per_layer(
    name: str, kind: str, modes: list[str], layers: list[int], repeat: int
) -> dict[str, dict[str, list[float]]]:
    """For each mode and part, milliseconds that one more layer costs: by the least and by the median of the turns."""
    options = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    workers = {mode: Worker("benchmarks.backend_cost", mode, name, kind, **options) for mode in modes}
    runs: dict[str, list[list[dict[str, float]]]] = {mode: [] for mode in modes}
    try:
        for mode in in_turns(modes, repeat):
            runs[mode].append([workers[mode].ask(layers=n) for n in layers])
    finally:
        for worker in workers.values():
            worker.close()

    def slope(mode: str, part: str, of: Callable[[list[float]], float]) -> float:
        small, large = (of([run[i][part] for run in runs[mode]]) for i in (0, 1))
        return 1000 * (large - small) / (layers[1] - layers[0])

    return {
        mode: {part: [slope(mode, part, of) for of in (min, statistics.median)] for part in PARTS} for mode in modes
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama", "gpt2", "bert", "vit"])
    parser.add_argument("--layers", type=int, nargs=2, default=[8, 32])
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(*options.serve)
        return
    modes = sorted(options.modes, key=MODES.index)  # stock flat first, if it was asked for: the others' ratio
    print(conditions())
    print(
        "model    kind            mode         all ms  ratio (median)  backend ms  ratio (median)   (per extra layer)"
    )
    for name in options.models:
        for kind in options.kinds:
            costs = per_layer(name, kind, modes, options.layers, options.repeat)
            for mode, cost in costs.items():
                columns = []
                for part in PARTS:
                    least, middle = cost[part]
                    of_least, of_middle = costs[modes[0]][part]
                    columns.append(f"{least:8.1f} {least / of_least:6.3f} ({middle / of_middle:6.3f})")
                print(f"{name:8s} {kind:15s} {mode:12s}", *columns, flush=True)


if __name__ == "__main__":
    main()
