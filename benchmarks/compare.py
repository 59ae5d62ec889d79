"""What a user can choose from, side by side: torch as it is installed, each block compiled by itself, and regions.

    python -m benchmarks.compare [NAME...] [--backend inductor] [--layers 12] [--repeat 5] [--missing] [--out DIR]

A training step of each architecture in the modes ``COMPARED`` of ``benchmarks/modes.py``, each mode in a process of its
own, in turns.  The first turn of an architecture fills caches of operators and does not count.  A turn is: the first
step, with a compile cache that is empty (cold); the first step after ``torch._dynamo.reset()`` with what that left in
the cache (warm); later steps (run); and what one of these holds at most (peak).  Cold and warm are wall time, so
that the compiler's processes are in them.  Results, gradients, buffers and the random state must equal those of stock
flat, or the cell says what differs; a mode that fails says with what.

Writes DIR/compare.md, compare.json (all that was measured, see benchmarks/kept.py) and, where matplotlib is installed,
compare.png.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from benchmarks.kept import Kept, add_missing_option
from benchmarks.modes import (
    COMPARED,
    FLAG,
    MARK,
    PER_BLOCK,
    STOCK_FLAG,
    STOCK_FLAT,
    STOCK_MARK,
    Worker,
    in_turns,
    serve,
)
from benchmarks.run_time import peak
from benchmarks.zoo import BLOCKS, blocks, mark_blocks
from benchmarks.zoo_more import build
from benchmarks.zoo_table import difference, seen_of


# Architectures whose blocks are known, so that each mode has a meaning; small enough to compile on a laptop.
NAMES = ("llama", "gpt2", "bert", "vit", "mixtral", "flux")
RUNS = 10
MEASURED = ("cold", "warm", "run", "peak")
# Class of a block -> its forward as it was.
_UNMARKED: dict[type, Any] = {}
UNITS = {"cold": "s", "warm": "s", "run": "ms", "peak": "KB"}


def compiled_in(mode: str, name: str, model: torch.nn.Module, backend: str) -> Any:
    """``model``, an example called ``name``, compiled as in ``mode``; the flag is the caller's to set."""
    if mode == PER_BLOCK:
        for block in blocks(name, model):
            block.compile(backend=backend)
        return model
    if mode == MARK:
        mark_blocks(name, model)
    for kind in {type(block) for block in blocks(name, model)} if mode == STOCK_MARK else ():
        # Stock marks functions, not methods.
        kind.forward = torch.compiler.nested_compile_region(_UNMARKED.setdefault(kind, kind.forward))
    return torch.compile(model, backend=backend)


def turn(mode: str, name: str, layers: int, backend: str, file: str) -> dict[str, Any]:
    """One turn of ``mode``; what can be seen of its first step goes into ``file``."""
    from torch._inductor.utils import fresh_cache

    found: dict[str, Any] = {}
    torch._dynamo.config.use_graph_deduplication = mode in (FLAG, STOCK_FLAG)
    with fresh_cache():
        for what in ("cold", "warm"):
            torch._dynamo.reset()
            example = build(name, layers)
            compiled = compiled_in(mode, name, example.model, backend)

            def step(call: Any = example.call, compiled: Any = compiled) -> torch.Tensor:
                out: torch.Tensor = call(compiled)
                out.float().pow(2).mean().backward()
                return out.detach()

            torch.manual_seed(1)
            start = time.perf_counter()
            try:
                out = step()
            except Exception as error:  # of stock: that is what the table is to show
                return {"error": f"{type(error).__name__}: {error}".partition("\n")[0][:100]}
            found[what] = time.perf_counter() - start
            if what == "cold":
                torch.save(seen_of(out, example.model), file)
        times = []
        for _ in range(RUNS):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        found["run"] = min(times) * 1e3
        found["peak"] = peak(step) / 1024
    return found


def measure(name: str, workers: dict[str, Worker], options: argparse.Namespace) -> dict[str, Any]:
    """One row: mode -> what was measured, a list of each; with what differs from stock flat, or what it failed with."""
    what = {"name": name, "layers": options.layers, "backend": options.backend}
    row: dict[str, Any] = {mode: {each: [] for each in MEASURED} for mode in COMPARED}
    with tempfile.TemporaryDirectory() as folder:
        files = {mode: str(Path(folder) / mode.replace(" ", "_")) for mode in COMPARED}
        for number, mode in enumerate(in_turns([*COMPARED], options.repeat + 1)):
            found, cell = workers[mode].ask(file=files[mode], **what), row[mode]
            if "error" in found:
                cell["said"] = found["error"]
                continue
            if mode != STOCK_FLAT and (differs := difference(torch.load(files[STOCK_FLAT]), torch.load(files[mode]))):
                cell["said"] = f"DIFFERS: {differs}"
            if number >= len(COMPARED):
                for each in MEASURED:
                    cell[each].append(found[each])
    return row


def _cell(row: dict[str, Any], mode: str, what: str) -> str:
    found = row[mode][what]
    if not found:
        return "fails"
    text = f"{min(found):.2f} {UNITS[what]} ({statistics.median(found):.2f})"
    if mode != STOCK_FLAT and row[STOCK_FLAT][what]:
        text += f", {min(found) / max(min(row[STOCK_FLAT][what]), 1e-9):.2f}x"
    return f"{text}, differs" if "said" in row[mode] else text


def table(rows: dict[str, dict[str, Any]], kind: dict[str, Any], conditions: str) -> str:
    """The rows, measured under ``conditions``, as Markdown: one table for each of what is measured."""
    lines = [
        f"Training step, {kind['layers']} layers, {kind['backend']}; least of {kind['repeat']}, the median in "
        "brackets, and the ratio of the least to stock flat's.",
        conditions,
    ]
    for what in MEASURED:
        lines += [
            "",
            f"### {what}",
            "",
            f"| architecture | {' | '.join(COMPARED)} |",
            "|---" * (len(COMPARED) + 1) + "|",
        ]
        for name, row in rows.items():
            lines.append(f"| {name} | {' | '.join(_cell(row, mode, what) for mode in COMPARED)} |")
    said = [
        f"- {name}, {mode}: {row[mode]['said']}"
        for name, row in rows.items()
        for mode in COMPARED
        if "said" in row[mode]
    ]
    return "\n".join([*lines, "", *(said or ["Each mode gives the results of stock flat."])]) + "\n"


def plot(rows: dict[str, dict[str, Any]], file: Path) -> None:
    """Bars of the cold and warm first steps."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    figure = Figure(figsize=(9, 0.9 * len(rows) + 1.5), layout="constrained")
    for axes, what in zip(figure.subplots(1, 2, sharey=True), ("cold", "warm"), strict=True):
        for number, mode in enumerate(COMPARED):
            at = [
                (k + 0.13 * (number - 2.5), min(row[mode][what]))
                for k, row in enumerate(rows.values())
                if row[mode][what]
            ]
            axes.barh([y for y, _ in at], [seconds for _, seconds in at], 0.12, label=mode)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_xlabel(f"seconds of the first step, {what}")
    axes.invert_yaxis()
    axes.legend(fontsize="small")
    figure.savefig(file, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BLOCKS)}; {', '.join(NAMES)} if none")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=5)
    add_missing_option(parser)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        torch.set_num_threads(1)
        serve(lambda **request: turn(options.serve, **request))
        return
    if unknown := set(options.names) - set(BLOCKS):
        parser.error(f"no blocks are known of {', '.join(sorted(unknown))}")
    kind = {each: getattr(options, each) for each in ("layers", "backend", "repeat")}
    kept = Kept(options.out / "compare.json", [*BLOCKS].index, kind)
    workers = {mode: Worker("benchmarks.compare", mode) for mode in COMPARED}
    try:
        for name in kept.wanted(options.names or NAMES, options.missing):
            row = measure(name, workers, options)
            kept.add(name, row)
            print(name, {mode: _cell(row, mode, "cold") for mode in COMPARED}, flush=True)
    finally:
        for worker in workers.values():
            worker.close()
    (options.out / "compare.md").write_text(table(kept.rows, kind, kept.conditions()))
    plot(kept.rows, options.out / "compare.png")


if __name__ == "__main__":
    main()
