"""What each row of the groups ``cost`` and ``speed`` saves of a compile with regions.

    python -m benchmarks.row_worth [--models llama:16 gpt2:12] [--repeat 5] [--rows TARGET ...] [--json FILE] [--calls]

One process a model compiles a training step with Inductor and the flag, again and again: with all rows, then without
one of them, row by row, in turns.  Kernels are compiled once and found again, and compiled graphs are not cached.  The
figure of a row is the median, over the turns, of the process's CPU seconds without the row over those with it, less
one.  ``--calls`` counts calls of functions in place of seconds, in one turn: the machine's speed has no part in it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.modes import conditions
from torch_regions import _manifest, _switch


REPO = Path(__file__).resolve().parent.parent


def rows() -> list[str]:
    """Targets of the rows that only save time."""
    manifest = _manifest.load(str(REPO / _manifest.NAME))
    return sorted(row.target for row in manifest.rows if row.group in _manifest.NEVER_ALWAYS and row.kind == "symbol")


@contextlib.contextmanager
def without(target: str | None) -> Iterator[None]:
    """Leaves one row to stock."""
    row = _switch._switched.pop(target) if target is not None else None
    try:
        yield
    finally:
        if row is not None and target is not None:
            _switch._switched[target] = row


@contextlib.contextmanager
def seconds(out: list[float]) -> Iterator[None]:
    start = time.process_time()
    yield
    out.append(time.process_time() - start)


@contextlib.contextmanager
def calls(out: list[float]) -> Iterator[None]:
    number = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        out.append(number)


def step(example: Any, measure: Any) -> float:
    """What the first training step takes."""
    import torch

    found: list[float] = []
    torch._dynamo.reset()
    example.model.zero_grad(set_to_none=True)
    gc.collect()
    with measure(found):
        compiled = torch.compile(example.model, fullgraph=True)
        example.call(compiled).float().pow(2).mean().backward()
    return found[0]


def measure_model(model: str, targets: list[str], repeat: int, by_calls: bool) -> dict[str, list[float]]:
    """target -> what the step takes without the row over what it takes with all, less one, for each turn."""
    import torch
    import torch._dynamo
    import torch._inductor.config

    from benchmarks.zoo import build

    name, _, layers = model.partition(":")
    torch.set_num_threads(1)
    example = build(name, int(layers))
    example.model.train()
    measure = calls if by_calls else seconds
    found: dict[str, list[float]] = {target: [] for target in targets}
    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch._dynamo.config.patch(use_graph_deduplication=True),
    ):
        step(example, measure)
        if by_calls:
            return _counted(example, targets)
        for target in targets:  # compiles all kernels
            with without(target):
                step(example, measure)
        for _ in range(repeat):
            before = step(example, measure)
            for i, target in enumerate(targets):
                with without(target):
                    taken = step(example, measure)
                # Every second row is between two steps with all rows; the machine's speed wanders.
                after = step(example, measure) if i % 2 or i == len(targets) - 1 else before
                found[target].append(taken / ((before + after) / 2) - 1)
                before = after
    return found


def _counted(example: Any, targets: list[str]) -> dict[str, list[float]]:
    """As ``measure_model``, from calls of functions: they are the same each time once all kernels are there."""
    found = {}
    with_all = step(example, calls)
    for target in targets:
        with without(target):
            found[target] = [min(step(example, calls) for _ in range(1 + ("codegen" in target))) / with_all - 1]
    return found


def _worker(model: str, targets: list[str], repeat: int, by_calls: bool, out: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        out.send(measure_model(model, targets, repeat, by_calls))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama:16", "gpt2:12"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rows", nargs="+")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--calls", action="store_true")
    options = parser.parse_args()
    targets = options.rows or rows()
    context = multiprocessing.get_context("spawn")
    table: dict[str, dict[str, list[float]]] = {}
    for model in options.models:
        here, there = context.Pipe()
        process = context.Process(target=_worker, args=(model, targets, options.repeat, options.calls, there))
        process.start()
        there.close()
        table[model] = here.recv()
        process.join()
    if options.json is not None:
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    print(conditions())
    print()
    print("| row |", " | ".join(options.models), "|")
    print("|---|" + "---|" * len(table))
    for target in targets:
        cells = [f"{statistics.median(each[target]):+.2%}" for each in table.values()]
        print(f"| `{target}` |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
