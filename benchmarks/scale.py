"""What deep models and long unrolled ones cost to compile: CPU seconds by their length, with the flag and stock flat.

    python -m benchmarks.scale [--backend aot_eager] [--llama 32 128 512] [--lstm 400 1600] [--repeat 2]

``--llama`` takes layers, ``--lstm`` the steps of an unrolled cell, in multiples of 50.  Forward only, under
``no_grad``.  Each turn compiles cold; each mode has a process of its own that has compiled a short model before.
``per more``: milliseconds for each layer or step by which a length is over the one before, by the least.
"""

from __future__ import annotations

import argparse
import gc
import time

import torch
import torch._dynamo

from benchmarks.modes import FLAG, STOCK_FLAT, Worker, conditions, in_turns, serve
from benchmarks.zoo_more import STEPS, build


MODES = (STOCK_FLAT, FLAG)


def seconds(mode: str, name: str, length: int, backend: str) -> float:
    """CPU seconds of one cold compile."""
    torch._dynamo.reset()
    gc.collect()
    torch.manual_seed(0)
    example = build(name, length // STEPS if name == "lstm" else length)
    compiled = torch.compile(example.model, backend=backend)
    with torch.no_grad(), torch._dynamo.config.patch(use_graph_deduplication=mode == FLAG):
        start = time.process_time()
        example.call(compiled)
        return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--llama", type=int, nargs="*", default=[32, 128, 512])
    parser.add_argument("--lstm", type=int, nargs="*", default=[400, 1600])
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--serve", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        torch.set_num_threads(1)
        mode = options.serve
        serve(lambda name, length: seconds(mode, name, length, options.backend))
        return
    workers = {mode: Worker("benchmarks.scale", mode, "--backend", options.backend) for mode in MODES}
    columns = " | ".join(f"{mode} | per more" for mode in MODES)
    print(f"{conditions()}\n\n| model | length | {columns} | flag / stock flat |")
    print("|---|---|" + "---|---|" * len(MODES) + "---|")
    for name, lengths in (("llama", options.llama), ("lstm", options.lstm)):
        for mode in MODES:
            workers[mode].ask(name=name, length=STEPS if name == "lstm" else 4)
        before: dict[str, tuple[int, float]] = {}
        for length in lengths:
            taken: dict[str, list[float]] = {mode: [] for mode in MODES}
            for mode in in_turns(list(MODES), options.repeat):
                taken[mode].append(workers[mode].ask(name=name, length=length))
            cells = []
            for mode in MODES:
                least = min(taken[mode])
                shorter, took = before.get(mode, (0, 0.0))
                more = f"{(least - took) / (length - shorter) * 1e3:.1f} ms" if shorter else ""
                cells.append(f"{least:.2f} | {more}")
                before[mode] = length, least
            ratio = min(taken[FLAG]) / min(taken[STOCK_FLAT])
            print(f"| {name} | {length} | {' | '.join(cells)} | {ratio:.2f} |", flush=True)
    for worker in workers.values():
        worker.close()


if __name__ == "__main__":
    main()
