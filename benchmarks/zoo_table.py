"""What the flag alone does for each architecture of the zoo: right, and how much faster it compiles.

    python -m benchmarks.zoo_table [NAME...] [--backend aot_eager] [--layers 6] [--repeat 2] [--dropout] [--out DIR]

A training step of each, compiled flat, with the flag without automatic regions, and with them, in turns in one
process; results, gradients, buffers and the random state must equal those of the flat compile, or it says "DIFFERS".
Times are CPU seconds of the first step, best of ``--repeat``. Each row is kept in DIR/zoo.json as soon as it is
measured; a later run adds to those of the same kind and replaces those of the same name. Writes DIR/zoo.md and, where
matplotlib is installed, DIR/zoo.png, of all rows there.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from benchmarks.zoo_more import ALL, build


MODES = {
    "flat": {},
    "flag": {"use_graph_deduplication": True, "automatic_nested_compile_regions": False},
    "automatic": {"use_graph_deduplication": True, "automatic_nested_compile_regions": True},
}
# No architecture may compile slower than flat by more than this.
LIMIT = 1.05


@dataclasses.dataclass
class Row:
    """One architecture."""

    name: str
    # mode -> seconds of the first step
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    # mode -> what differs from flat, if anything does
    differs: dict[str, str] = dataclasses.field(default_factory=dict)
    traced: int = 0
    reused: int = 0
    inlined: int = 0

    def ratio(self, mode: str) -> float:
        return self.seconds[mode] / self.seconds["flat"]


def step(name: str, layers: int, backend: str, dropout: bool, mode: str) -> tuple[float, list[Any]]:
    """CPU seconds of the first training step, and all that can be seen of it."""
    torch._dynamo.reset()
    counters.clear()
    example = build(name, layers, dropout)
    compiled = torch.compile(example.model, backend=backend)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._dynamo.config.patch(**MODES[mode]))
        if backend == "inductor":
            from torch._inductor.utils import fresh_cache

            stack.enter_context(fresh_cache())
        torch.manual_seed(1)
        gc.collect()  # what the step before has left is not this one's to clear away
        start = time.process_time()
        out = example.call(compiled)
        out.float().pow(2).mean().backward()
        spent = time.process_time() - start
    model = example.model
    gradients = [p.grad for p in model.parameters()]
    return spent, [out.detach(), gradients, [b.clone() for b in model.buffers()], torch.get_rng_state()]


def difference(wanted: list[Any], got: list[Any]) -> str:
    """What differs, up to rounding; empty when nothing does."""
    for what, one, other in zip(("results", "gradients", "buffers", "random state"), wanted, got, strict=True):
        try:
            torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)
        except (AssertionError, TypeError):
            return what
    return ""


def measure(name: str, options: argparse.Namespace) -> Row:
    """One row: each mode in turn, ``options.repeat`` times."""
    row = Row(name)
    # The first compile of an architecture fills caches of operators that the others find full.
    _, wanted = step(name, options.layers, options.backend, options.dropout, "flat")
    for _ in range(options.repeat):
        for mode in MODES:
            spent, seen = step(name, options.layers, options.backend, options.dropout, mode)
            row.seconds[mode] = min(spent, row.seconds.get(mode, spent))
            if found := difference(wanted, seen):
                row.differs[mode] = found
    row.traced, row.reused, row.inlined = (counters["regions"][o] for o in ("traced", "reused", "inlined"))
    return row


class Kept:
    """The rows of one kind of run, in a file."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self.path = path
        self.kind = {"layers": options.layers, "backend": options.backend, "dropout": options.dropout}
        self.rows: dict[str, Row] = {}
        if path.exists():
            content = json.loads(path.read_text())
            if content["kind"] == self.kind:
                self.rows = {name: Row(**row) for name, row in content["rows"].items()}

    def add(self, row: Row) -> None:
        self.rows[row.name] = row
        rows = {name: dataclasses.asdict(self.rows[name]) for name in ALL if name in self.rows}
        self.path.write_text(json.dumps({"kind": self.kind, "rows": rows}, indent=1) + "\n")

    def in_order(self) -> list[Row]:
        return [self.rows[name] for name in ALL if name in self.rows]


def table(rows: list[Row], options: argparse.Namespace) -> str:
    """The rows as Markdown."""
    lines = [
        f"Training step, {options.layers} layers, {options.backend}, dropout {'on' if options.dropout else 'off'}.",
        "",
        "| architecture | flat | flag | ratio | automatic | ratio | traced | reused | inlined | equal to flat |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        equal = "yes" if not r.differs else "DIFFERS: " + ", ".join(f"{m} {what}" for m, what in r.differs.items())
        cells = [r.name, f"{r.seconds['flat']:.2f} s"]
        for mode in ("flag", "automatic"):
            cells += [f"{r.seconds[mode]:.2f} s", f"{r.ratio(mode):.2f}"]
        cells += [*map(str, (r.traced, r.reused, r.inlined)), equal]
        lines.append(f"| {' | '.join(cells)} |")
    slower = [r.name for r in rows if r.ratio("automatic") > LIMIT]
    lines += ["", f"Slower than flat by more than {LIMIT - 1:.0%}: {', '.join(slower) or 'none'}."]
    return "\n".join(lines) + "\n"


def plot(rows: list[Row], path: Path) -> None:
    """Writes the ratios to flat as bars."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    figure = Figure(figsize=(8, 0.3 * len(rows) + 1.5), layout="constrained")
    axes = figure.subplots()
    ordered = sorted(rows, key=lambda r: r.ratio("automatic"), reverse=True)
    places = range(len(ordered))
    for shift, mode in ((0.2, "flag"), (-0.2, "automatic")):
        axes.barh([p + shift for p in places], [r.ratio(mode) for r in ordered], 0.38, label=mode)
    axes.set_yticks(list(places), [r.name for r in ordered])
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("CPU time of the first training step, over that of the flat compile")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures; all when none is named")
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--dropout", action="store_true")
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    step("encoder", 2, options.backend, False, "automatic")  # warm up
    options.out.mkdir(parents=True, exist_ok=True)
    kept = Kept(options.out / "zoo.json", options)
    for name in options.names or ALL:
        row = measure(name, options)
        kept.add(row)
        print(table([row], options).splitlines()[4], flush=True)
    rows = kept.in_order()
    (options.out / "zoo.md").write_text(table(rows, options))
    plot(rows, options.out / "zoo.png")
    print(table(rows, options).splitlines()[-1])


if __name__ == "__main__":
    main()
