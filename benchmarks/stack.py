"""What people put around a repeated layer when they train: what of the flag's gain is left with each feature.

    python -m benchmarks.stack [ROW...] [--layers 8] [--backend aot_eager] [--repeat 5] [--missing] [--out DIR]

Each row (benchmarks/stack_rows.py) is a decoder with one feature, and one training step of it that is compiled cold.
The modes (benchmarks/modes.py) have processes of their own, which take turns. A process has compiled the row once
before it is measured, and reads no compile cache.  With ``--out``, the table goes to DIR/stack_BACKEND.md with a
picture beside it.

- ``flag / overlay flat``, ``flag / stock flat``: CPU seconds of the compile, by the least of the turns, and in brackets
  by the median.  What the same step takes once it is compiled is subtracted.
- ``outlined``: operators in bodies, of all operators of the graph; those in operators with bodies count.
- ``saved``: tensors that the step saves for its backward, but for parameters, and their KB: overlay flat, then flag.
- ``peak``: the most memory that a step holds over what was held when it began, flag over overlay flat.
- ``run``: CPU seconds of a step once it is compiled, flag over overlay flat, the least of five in each turn.
- ``equal``: whether loss and gradients are those of overlay flat: ``bits``, ``close`` (as torch.testing has it), or NO.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from benchmarks.kept import Kept, add_missing_option
from benchmarks.modes import FLAG, OVERLAY_FLAT, STOCK_FLAT, environment, equality, options_of_rows
from benchmarks.run_time import peak
from benchmarks.stack_rows_sizes import ROWS


MODES = (STOCK_FLAT, OVERLAY_FLAT, FLAG)
_COLUMNS = ["row", *MODES, "flag / overlay flat", "flag / stock flat", "outlined", "saved: overlay flat, flag", "peak"]
_COLUMNS += ["run", "equal"]
_HEAD = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]


def _step(module: Any, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    loss = module(*inputs).float().pow(2).mean()
    if loss.requires_grad:
        loss.backward()
    return loss.detach()  # type: ignore[no-any-return]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a DTensor; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def saved(module: torch.nn.Module, step: Callable[[], Any]) -> tuple[int, int]:
    """How many tensors ``step`` saves that are no parameters, each memory once, and their bytes."""
    own = {_local(p).untyped_storage()._cdata for p in module.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            found[storage._cdata] = storage  # kept, so that no other one comes to have its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return len(found), sum(storage.nbytes() for storage in found.values())


def measure(name: str, mode: str, layers: int, backend: str) -> dict[str, Any]:
    """What one cold compile of a row costs, and what its steps save, hold and give."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    module, inputs = ROWS[name](layers)
    options = {"use_graph_deduplication": mode == FLAG, **getattr(module, "dynamo_config", {})}
    with torch._dynamo.config.patch(options):
        compiled = torch.compile(module, backend=backend)
        step = functools.partial(_step, compiled, inputs)
        seconds = []
        for _ in range(6):
            module.zero_grad()
            torch.manual_seed(0)
            start = time.process_time()
            loss = step()
            seconds.append(time.process_time() - start)
        counted = counters["graph_deduplication"]
        grads = [_local(p.grad) for p in module.parameters() if p.grad is not None]
        return {
            "seconds": seconds[0] - min(seconds[1:]),
            "run": min(seconds[1:]),
            "outlined": [counted["operators_outlined"], counted["operators"]],
            "values": [loss.tolist(), *(grad.flatten().tolist() for grad in grads)],
            "saved": saved(module, step),
            "peak": peak(lambda: (step(), module.zero_grad())),
        }


def _serve(name: str, mode: str, layers: int, backend: str) -> None:
    """Measures the row once for each line on stdin; the first time is to warm up."""
    from torch._inductor.utils import fresh_cache

    torch.set_num_threads(1)
    with fresh_cache():
        measure(name, mode, layers, backend)
    for _ in sys.stdin:
        gc.collect()
        with fresh_cache():
            print(json.dumps(measure(name, mode, layers, backend)), flush=True)


def _worker(arguments: list[str], mode: str) -> subprocess.Popen[str]:
    own = environment(mode, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    command = [sys.executable, "-m", "benchmarks.stack", "--serve", mode, *arguments]
    return subprocess.Popen(command, text=True, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _ask(worker: subprocess.Popen[str]) -> dict[str, Any]:
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write("once\n")
    worker.stdin.flush()
    answer = worker.stdout.readline()
    if not answer:
        raise RuntimeError(f"{worker.args}: ended with {worker.wait()}, its errors are above")
    return json.loads(answer)  # type: ignore[no-any-return]


def _row(name: str, turns: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The cells of a row, and the ratio that the picture shows."""
    seconds = {mode: [turn["seconds"] for turn in turns[mode]] for mode in MODES}
    ratios = []
    for base in (OVERLAY_FLAT, STOCK_FLAT):
        least, median = (of(seconds[FLAG]) / of(seconds[base]) for of in (min, statistics.median))
        ratios.append(f"{least:.2f} ({median:.2f})")
    run = {mode: min(turn["run"] for turn in turns[mode]) for mode in MODES}
    flat, flag = turns[OVERLAY_FLAT][0], turns[FLAG][0]
    saved = ", ".join(f"{number} of {size / 1024:.0f} KB" for number, size in (flat["saved"], flag["saved"]))
    cells = [
        name,
        *(f"{min(seconds[mode]):.2f}" for mode in MODES),
        *ratios,
        "{} of {}".format(*flag["outlined"]),
        saved,
        f"{flag['peak'] / flat['peak']:.3f}",
        f"{run[FLAG] / run[OVERLAY_FLAT]:.2f}",
        equality(flag["values"], flat["values"]),
    ]
    least = {mode: min(of) for mode, of in seconds.items()}
    return {"cells": cells, "ratio": least[FLAG] / least[STOCK_FLAT]}


def main() -> None:
    parser = options_of_rows(__doc__, ROWS, backend="aot_eager", repeat=5)
    add_missing_option(parser)
    parser.add_argument("--serve", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(options.rows[0], options.serve, options.layers, options.backend)
        return
    kept = None
    rows = options.rows or [*ROWS]
    if options.out is not None:
        kind = {each: getattr(options, each) for each in ("layers", "backend", "repeat")}
        kept = Kept(options.out / f"stack_{options.backend}.json", [*ROWS].index, kind)
        rows = kept.wanted(rows, options.missing)
    print("\n".join(_HEAD))
    for name in rows:
        row = _row(name, _turns(name, options.layers, options.backend, options.repeat))
        print(_line(row), flush=True)
        if kept is not None:
            kept.add(name, row)
            _write(kept)


def _line(row: dict[str, Any]) -> str:
    return f"| {' | '.join(row['cells'])} |"


def _write(kept: Kept) -> None:
    """The table of all rows, and its picture."""
    table, file = "\n".join([*_HEAD, *map(_line, kept.rows.values())]), kept.path.with_suffix(".md")
    file.write_text(f"{kept.conditions()}\n\n{table}\n\n![flag over stock flat]({file.stem}.png)\n")
    _picture({name: row["ratio"] for name, row in kept.rows.items()}, file.with_suffix(".png"))


def _turns(name: str, layers: int, backend: str, repeat: int) -> dict[str, list[dict[str, Any]]]:
    """What each mode measured in its turns."""
    arguments = [name, "--layers", str(layers), "--backend", backend]
    workers = {mode: _worker(arguments, mode) for mode in MODES}
    turns: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    try:
        for _ in range(repeat):
            for mode, worker in workers.items():
                turns[mode].append(_ask(worker))
    finally:
        for worker in workers.values():
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait()
    return turns


def _picture(ratios: dict[str, float], file: Path) -> None:
    """A bar for each row: CPU seconds of the compile with the flag, over stock flat."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(8, 0.35 * len(ratios) + 1), layout="tight")
    axes = figure.subplots()
    bars = axes.barh(
        list(ratios), list(ratios.values()), color=["tab:blue" if r <= 1 else "tab:red" for r in ratios.values()]
    )
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(1.0, color="grey", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("CPU seconds of the compile, flag over stock flat")
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
