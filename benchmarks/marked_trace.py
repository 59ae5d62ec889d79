"""Cost of Dynamo's trace per extra layer, in each mode of ``benchmarks/modes.py``.

    python -m benchmarks.marked_trace [--models llama gpt2 bert vit] [--layers 8 32] [--repeat 5]

CPU time of compiling for a backend that does nothing, each mode in a process of its own, in turns: the least of
``--repeat``, the median in brackets.  Ratios are over stock flat's.  "checkpointed": blocks run in the body of a
checkpoint, where calls of regions are inlined.
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
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from benchmarks.modes import FLAG, MARK, MODES, Worker, conditions, in_turns, serve
from benchmarks.zoo import blocks, build, mark_blocks


def _checkpointed(name: str, model: torch.nn.Module) -> None:
    for block in blocks(name, model):
        forward = block.forward

        def run(*args: object, forward: Callable[..., object] = forward, **kwargs: object) -> object:
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)

        block.forward = run  # type: ignore[method-assign]


def seconds(mode: str, name: str, layers: int, checkpointed: bool) -> float:
    """CPU seconds to compile a model for a backend that does nothing."""
    torch._dynamo.reset()
    counters.clear()
    gc.collect()
    torch.manual_seed(0)
    example = build(name, layers)
    if mode == MARK:
        mark_blocks(name, example.model)
    if checkpointed:
        _checkpointed(name, example.model)
    compiled = torch.compile(example.model, backend=lambda gm, _: gm.forward)
    with torch._dynamo.config.patch(use_graph_deduplication=mode == FLAG):
        start = time.process_time()
        example.call(compiled)
        spent = time.process_time() - start
    if mode == MARK:
        expected = "inlined" if checkpointed else "reused"
        assert counters["regions"][expected] >= layers - 2, counters["regions"]
    return spent


def per_layer(workers: dict[str, Worker], layers: list[int], repeat: int, **what: Any) -> dict[str, list[float]]:
    """Milliseconds that one more layer costs in each mode: by the least and by the median of the turns."""
    runs: dict[str, list[list[float]]] = {mode: [] for mode in workers}
    for mode in in_turns([*workers], repeat):
        runs[mode].append([workers[mode].ask(layers=n, **what) for n in layers])
    costs = {}
    for mode, found in runs.items():
        small, large = zip(*found, strict=True)
        costs[mode] = [1000 * (of(large) - of(small)) / (layers[1] - layers[0]) for of in (min, statistics.median)]
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama", "gpt2", "bert", "vit"])
    parser.add_argument("--layers", type=int, nargs=2, default=[8, 32])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        seconds(options.serve, "llama", 2, checkpointed=False)  # warm up
        serve(lambda **what: seconds(options.serve, **what))
        return
    print(conditions())
    workers = {mode: Worker("benchmarks.marked_trace", mode) for mode in sorted(options.modes, key=MODES.index)}
    print("model    blocks        mode          ms per layer  ratio (median)")
    for name in options.models:
        for checkpointed in (False, True):
            costs = per_layer(workers, options.layers, options.repeat, name=name, checkpointed=checkpointed)
            base = next(iter(costs.values()))
            for mode, (least, middle) in costs.items():
                blocks_are = "checkpointed" if checkpointed else "as they are"
                ratios = f"{least / base[0]:6.3f} ({middle / base[1]:.3f})"
                print(f"{name:8s} {blocks_are:13s} {mode:12s} {least:8.1f} ({middle:.1f})  {ratios}", flush=True)
    for worker in workers.values():
        worker.close()


if __name__ == "__main__":
    main()
