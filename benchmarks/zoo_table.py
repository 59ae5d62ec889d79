"""What regions do for each architecture of the zoo: results are those of stock, and how long the compile takes.

    python -m benchmarks.zoo_table [NAME...] [--backend aot_eager] [--layers 6] [--repeat 5] [--dropout] [--missing]
                                   [--out DIR]

A training step of each in the four modes of ``benchmarks/modes.py``, each mode in a process of its own, in turns.  The
first step of an architecture in a process fills caches of operators and does not count.  Results, gradients, buffers
and the random state must equal those of stock flat, or the row says "DIFFERS".  Times are CPU seconds of the first
step: the least of ``--repeat``, the median in brackets.  A ratio is over stock flat's.  ``mark`` is for architectures
whose blocks the zoo knows.  Writes DIR/zoo.json (benchmarks/kept.py), DIR/zoo.md and, where matplotlib is installed,
DIR/zoo.png, of all rows there.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from benchmarks.kept import Kept, add_missing_option
from benchmarks.modes import FLAG, MARK, MODES, STOCK_FLAT, Worker, in_turns, serve
from benchmarks.zoo import BLOCKS, mark_blocks
from benchmarks.zoo_more import ALL, build


# No architecture may compile slower than stock flat by more than this, in any mode.
LIMIT = 1.05
OTHERS = MODES[1:]


@dataclasses.dataclass
class Row:
    """One architecture."""

    name: str
    # mode -> seconds of each first step
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    # mode -> what differs from stock flat, if anything does
    differs: dict[str, str] = dataclasses.field(default_factory=dict)
    # Outcomes of calls under the flag
    traced: int = 0
    reused: int = 0
    inlined: int = 0

    def ratio(self, mode: str, of: Any = min) -> float:
        return float(of(self.seconds[mode]) / of(self.seconds[STOCK_FLAT]))


def step(mode: str, name: str, layers: int, backend: str, dropout: bool) -> tuple[float, list[Any]]:
    """CPU seconds of the first training step, and all that can be seen of it."""
    torch._dynamo.reset()
    counters.clear()
    example = build(name, layers, dropout)
    if mode == MARK:
        mark_blocks(name, example.model)
    compiled = torch.compile(example.model, backend=backend)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._dynamo.config.patch(use_graph_deduplication=mode == FLAG))
        if backend == "inductor":
            from torch._inductor.utils import fresh_cache

            stack.enter_context(fresh_cache())
        torch.manual_seed(1)
        gc.collect()  # what the step before has left is not this one's to clear away
        start = time.process_time()
        out = example.call(compiled)
        out.float().pow(2).mean().backward()
        spent = time.process_time() - start
    return spent, seen_of(out, example.model)


def seen_of(out: torch.Tensor, model: torch.nn.Module) -> list[Any]:
    """All that can be seen of a first step that returned ``out``, as ``difference`` compares it."""
    gradients = [p.grad for p in model.parameters()]
    return [out.detach(), gradients, [b.clone() for b in model.buffers()], torch.get_rng_state()]


def _answer(mode: str, file: str, **what: Any) -> dict[str, Any]:
    """One step in the process of ``mode``; what can be seen of it goes into ``file``."""
    spent, seen = step(mode, **what)
    torch.save(seen, file)
    return {"seconds": spent, **{o: counters["regions"][o] for o in ("traced", "reused", "inlined")}}


def difference(wanted: list[Any], got: list[Any]) -> str:
    """What differs, up to rounding; empty when nothing does."""
    for what, one, other in zip(("results", "gradients", "buffers", "random state"), wanted, got, strict=True):
        try:
            torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)
        except (AssertionError, TypeError):
            return what
    return ""


def measure(name: str, workers: dict[str, Worker], options: argparse.Namespace) -> Row:
    """One row: each mode in turn, ``options.repeat`` times after a first one that does not count."""
    row = Row(name)
    what = {"name": name, "layers": options.layers, "backend": options.backend, "dropout": options.dropout}
    modes = [mode for mode in MODES if mode != MARK or name in BLOCKS]
    with tempfile.TemporaryDirectory() as folder:
        files = {mode: str(Path(folder) / mode) for mode in modes}
        for number, mode in enumerate(in_turns(modes, options.repeat + 1)):
            found = workers[mode].ask(file=files[mode], **what)
            if number >= len(modes):
                row.seconds.setdefault(mode, []).append(found["seconds"])
            if mode == FLAG:
                row.traced, row.reused, row.inlined = (found[o] for o in ("traced", "reused", "inlined"))
            if mode != STOCK_FLAT and (differs := difference(torch.load(files[STOCK_FLAT]), torch.load(files[mode]))):
                row.differs[mode] = differs
    return row


def _seconds(found: list[float]) -> str:
    return f"{min(found):.2f} s ({statistics.median(found):.2f})"


def _line(row: Row) -> str:
    equal = "yes" if not row.differs else "DIFFERS: " + ", ".join(f"{m} {what}" for m, what in row.differs.items())
    cells = [row.name, _seconds(row.seconds[STOCK_FLAT])]
    for mode in OTHERS:
        if mode in row.seconds:
            cells += [_seconds(row.seconds[mode]), f"{row.ratio(mode):.2f} ({row.ratio(mode, statistics.median):.2f})"]
        else:
            cells += ["", ""]
    cells += [*map(str, (row.traced, row.reused, row.inlined)), equal]
    return f"| {' | '.join(cells)} |"


def slower(rows: list[Row]) -> str:
    """The summary: which architectures any mode makes slower, by the least."""
    found = [
        f"{row.name} ({mode} {row.ratio(mode):.2f})"
        for row in rows
        for mode in OTHERS
        if mode in row.seconds and row.ratio(mode) > LIMIT
    ]
    return f"Slower than stock flat by more than {LIMIT - 1:.0%}, in any mode: {', '.join(found) or 'none'}."


def table(rows: list[Row], kind: dict[str, Any], conditions: str) -> str:
    """The rows as Markdown; ``conditions``: under which they were measured."""
    heads = ["architecture", STOCK_FLAT, *(head for mode in OTHERS for head in (mode, "ratio"))]
    heads += ["traced", "reused", "inlined", "equal to stock flat"]
    dropout = "on" if kind["dropout"] else "off"
    lines = [
        f"Training step, {kind['layers']} layers, {kind['backend']}, dropout {dropout}; "
        f"least of {kind['repeat']}, the median in brackets.",
        conditions,
        "",
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *map(_line, rows),
        "",
        slower(rows),
    ]
    return "\n".join(lines) + "\n"


def plot(rows: list[Row], path: Path) -> None:
    """Writes the ratios to stock flat as bars."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    figure = Figure(figsize=(8, 0.3 * len(rows) + 1.5), layout="constrained")
    axes = figure.subplots()
    ordered = sorted(rows, key=lambda r: r.ratio(FLAG), reverse=True)
    for number, mode in enumerate(OTHERS):
        here = [(index + 0.26 * (1 - number), r.ratio(mode)) for index, r in enumerate(ordered) if mode in r.seconds]
        axes.barh([place for place, _ in here], [ratio for _, ratio in here], 0.25, label=mode)
    axes.set_yticks(range(len(ordered)), [r.name for r in ordered])
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("CPU time of the first training step, over stock flat's")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures; all when none is named")
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--dropout", action="store_true")
    add_missing_option(parser)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        torch.set_num_threads(1)
        serve(lambda **request: _answer(options.serve, **request))
        return
    kind = {each: getattr(options, each) for each in ("layers", "backend", "dropout", "repeat")}
    kept = Kept(options.out / "zoo.json", [*ALL].index, kind)
    workers = {mode: Worker("benchmarks.zoo_table", mode) for mode in MODES}
    try:
        for name in kept.wanted(options.names or ALL, options.missing):
            row = measure(name, workers, options)
            kept.add(name, dataclasses.asdict(row))
            print(_line(row), flush=True)
    finally:
        for worker in workers.values():
            worker.close()
    rows = [Row(**row) for row in kept.rows.values()]
    (options.out / "zoo.md").write_text(table(rows, kind, kept.conditions()))
    plot(rows, options.out / "zoo.png")
    print(slower(rows))


if __name__ == "__main__":
    main()
