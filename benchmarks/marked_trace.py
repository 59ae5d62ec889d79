"""Cost of Dynamo's trace per extra layer: marked and reused, marked and inlined, over unmarked.

    python -m benchmarks.marked_trace [--models llama gpt2 bert vit] [--layers 8 32] [--repeat 3]

CPU time of compiling for a backend that does nothing, in turns, best of ``--repeat``. The inlined blocks are marked
inside the body of a checkpoint, where regions stay flat.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo import blocks, build, mark_blocks


def _checkpointed(name: str, model: torch.nn.Module) -> None:
    for block in blocks(name, model):
        forward = block.forward

        def run(*args: object, forward: Callable[..., object] = forward, **kwargs: object) -> object:
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)

        block.forward = run  # type: ignore[method-assign]


def seconds(name: str, layers: int, marked: bool, inlined: bool) -> float:
    """CPU seconds to compile a model for a backend that does nothing."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    example = build(name, layers)
    if marked:
        mark_blocks(name, example.model)
    if inlined:
        _checkpointed(name, example.model)
    compiled = torch.compile(example.model, backend=lambda gm, _: gm.forward)
    start = time.process_time()
    example.call(compiled)
    spent = time.process_time() - start
    if marked:
        expected = "inlined" if inlined else "reused"
        assert counters["regions"][expected] >= layers - 2, counters["regions"]
    return spent


def per_layer(name: str, small: int, large: int, repeat: int, marked: bool, inlined: bool) -> float:
    runs = [[seconds(name, n, marked, inlined) for n in (small, large)] for _ in range(repeat)]
    best = [min(run[k] for run in runs) for k in (0, 1)]
    return (best[1] - best[0]) / (large - small)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama", "gpt2", "bert", "vit"])
    parser.add_argument("--layers", type=int, nargs=2, default=[8, 32])
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    seconds(options.models[0], 2, marked=True, inlined=False)  # warm up
    print("model      flat ms   reused ms  ratio   flat ms   inlined ms  ratio   (per extra layer)")
    for name in options.models:
        flat, reused, outer, inlined = (
            1000 * per_layer(name, *options.layers, options.repeat, marked, inlined)
            for inlined in (False, True)
            for marked in (False, True)
        )
        print(
            f"{name:8s} {flat:9.1f} {reused:11.1f} {reused / flat:6.2f} {outer:9.1f} {inlined:12.1f}"
            f" {inlined / outer:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
