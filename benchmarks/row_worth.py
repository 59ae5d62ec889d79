"""What each row of the groups ``cost`` and ``speed`` saves of a compile with regions, and of Dynamo's trace.

    python -m benchmarks.row_worth [--models llama:16 gpt2:12] [--parts compile trace] [--repeat 5] [--rows TARGET ...]
        [--calls] [--out DIR]

One process a model compiles under the flag, again and again: with all rows, then without one of them, row by row, in
turns.  ``compile`` is a training step with Inductor; kernels are compiled once and found again, and compiled graphs are
not cached.  ``trace`` is a forward for a backend that does nothing.  The figure of a row is the median, over the turns,
of the process's CPU seconds without the row over those with it, less one; the least stands in brackets.  ``--calls``
counts calls of functions in place of seconds, in one turn: the machine's speed has no part in it.  Each figure is
written to DIR/row_worth.json as soon as it is there, and the table to DIR/row_worth.md.
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
PARTS = ("compile", "trace")


def rows() -> list[str]:
    """Targets of the rows that only save time."""
    manifest = _manifest.load(str(REPO / _manifest.NAME))
    return sorted(row.target for row in manifest.rows if row.group in _manifest.NEVER_ALWAYS and row.kind == "symbol")


@contextlib.contextmanager
def without(target: str | None) -> Iterator[None]:
    """Leaves one row to stock.  A module that was not imported has nothing to leave."""
    row = _switch._switched.pop(target, None) if target is not None else None
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


def step(example: Any, measure: Any, part: str) -> float:
    """What the first training step takes, or the trace of the first forward."""
    import torch

    found: list[float] = []
    torch._dynamo.reset()
    example.model.zero_grad(set_to_none=True)
    gc.collect()
    if part == "trace":
        compiled = torch.compile(example.model, fullgraph=True, backend=lambda gm, _: gm.forward)
        with measure(found):
            example.call(compiled)
    else:
        compiled = torch.compile(example.model, fullgraph=True)
        with measure(found):
            example.call(compiled).float().pow(2).mean().backward()
    return found[0]


def _figures(example: Any, part: str, targets: list[str], repeat: int, by_calls: bool) -> Iterator[tuple[str, float]]:
    """Each row, and what the step takes without it over what it takes with all, less one; once for each turn."""
    measure = calls if by_calls else seconds
    step(example, seconds, part)
    if by_calls:  # they are the same each time once all kernels are there
        with_all = step(example, measure, part)
        for target in targets:
            with without(target):
                if "codegen" in target and part == "compile":
                    step(example, seconds, part)
                yield target, step(example, measure, part) / with_all - 1
        return
    for target in targets:  # compiles all kernels
        with without(target):
            step(example, measure, part)
    for _ in range(repeat):
        before = step(example, measure, part)
        for i, target in enumerate(targets):
            with without(target):
                taken = step(example, measure, part)
            # Every second row is between two steps with all rows; the machine's speed wanders.
            after = step(example, measure, part) if i % 2 or i == len(targets) - 1 else before
            yield target, taken / ((before + after) / 2) - 1
            before = after


def _worker(model: str, parts: list[str], targets: list[str], repeat: int, by_calls: bool, out: Any) -> None:
    """Sends (part, target, figure) for each figure, then None."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        import torch
        import torch._dynamo
        import torch._inductor.config

        from benchmarks.zoo import build

        name, _, layers = model.partition(":")
        torch.set_num_threads(1)
        example = build(name, int(layers))
        example.model.train()
        with (
            torch._inductor.config.patch(fx_graph_cache=False),
            torch._functorch.config.patch(enable_autograd_cache=False),
            torch._dynamo.config.patch(use_graph_deduplication=True),
        ):
            for part in parts:
                for target, figure in _figures(example, part, targets, repeat, by_calls):
                    out.send((part, target, figure))
    out.send(None)


def table(found: dict[str, dict[str, list[float]]], targets: list[str]) -> str:
    """The figures as Markdown."""
    lines = [f"| row | {' | '.join(found)} |", "|---" * (1 + len(found)) + "|"]
    for target in targets:
        cells = []
        for column in found.values():
            figures = column.get(target, [])
            least = f" ({min(figures):+.2%})" if len(figures) > 1 else ""
            cells.append(f"{statistics.median(figures):+.2%}{least}" if figures else "")
        lines.append(f"| `{target}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama:16", "gpt2:12"])
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rows", nargs="+")
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    targets = options.rows or rows()
    what = f"{'Calls of functions' if options.calls else 'CPU seconds'} that a compile takes more without the row."
    head = f"{what}\n{conditions()}\n\n"
    context = multiprocessing.get_context("spawn")
    found: dict[str, dict[str, list[float]]] = {}
    for model in options.models:
        here, there = context.Pipe()
        arguments = (model, options.parts, targets, options.repeat, options.calls, there)
        process = context.Process(target=_worker, args=arguments)
        process.start()
        there.close()
        while (figure := here.recv()) is not None:
            part, target, value = figure
            found.setdefault(f"{model}, {part}", {}).setdefault(target, []).append(value)
            if options.out is not None:
                (options.out / "row_worth.json").write_text(json.dumps(found, indent=1) + "\n")
                (options.out / "row_worth.md").write_text(head + table(found, targets))
        process.join()
    print(head + table(found, targets))


if __name__ == "__main__":
    main()
