"""What each way to compile a repeated block once gives up, beside its compile time: counts, and checks at run time.

    python -m benchmarks.ways [--layers 16] [--repeat 5] [--out DIR]

A stack of small blocks, in the modes ``CHOICES`` of ``benchmarks/modes.py``, each in a process of its own:

compiles   frames that Dynamo compiles in the first step
numbered   the same, where each layer takes its own of a list of tensors by its number, as layers take their part of a
           cache; behind it, the layers that then run uncompiled, since their code was compiled as often as
           ``recompile_limit`` allows
break      the same, where each layer has a graph break in its middle
checks     microseconds a layer that a step of inference takes with the backend ``eager``, which runs each operator as
           torch does without a compile: what is left is guards, and getting from one compiled frame to the next.
           Modes take turns; the least, the median in brackets, over stock flat's least
kernels    kernels of Inductor's own in a step of inference, as the profiler sees them: two operators that stand on
           either side of a block's end may be one kernel in stock flat only
saved      KB that Inductor's forward saves for the backward, parameters left out

Writes DIR/ways.md.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from benchmarks.modes import FLAG, MARK, PER_BLOCK, STOCK_FLAT, Worker, conditions, in_turns, serve
from benchmarks.stack import saved


CHOICES = (STOCK_FLAT, PER_BLOCK, MARK, FLAG)
COUNTED = ("compiles", "numbered", "break", "kernels", "saved")
WIDTH, BATCH, STEPS = 64, 8, 50


class Block(torch.nn.Module):
    """A layer; ``kind`` says what is particular about it."""

    def __init__(self, number: int, kind: str) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            torch.nn.LayerNorm(WIDTH),
            torch.nn.Linear(WIDTH, WIDTH),
            torch.nn.Linear(WIDTH, WIDTH),
        )
        self.kind, self.number = kind, number

    def forward(self, x: torch.Tensor, entries: list[torch.Tensor]) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(self.up(self.norm(x)))
        if self.kind == "break":
            torch._dynamo.graph_break()
        return x + self.down(hidden) * (entries[self.number] if self.kind == "numbered" else 1)


class Stack(torch.nn.Module):
    """Blocks, one after another."""

    def __init__(self, layers: int, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Block(number, kind) for number in range(layers))
        self.entries = [torch.full((), 1 + number / layers) for number in range(layers)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, self.entries)
        return x


def compiled(mode: str, layers: int, kind: str, backend: Any) -> Stack:
    """A stack, compiled as in ``mode`` by its first call."""
    torch._dynamo.reset()
    counters.clear()
    torch._dynamo.config.use_graph_deduplication = mode == FLAG
    model = Stack(layers, kind)
    if mode == PER_BLOCK:
        for layer in model.layers:
            layer.compile(backend=backend)
        return model
    if mode == MARK:
        for layer in model.layers:
            layer.forward = torch.compiler.nested_compile_region(layer.forward)
    model.compile(backend=backend)
    return model


def compiles(mode: str, layers: int, kind: str) -> str:
    """Frames that are compiled; and the layers that then run uncompiled, if there are any."""
    counter = CompileCounterWithBackend("eager")
    model = compiled(mode, layers, kind, counter)
    with torch.no_grad():
        model(torch.ones(BATCH, WIDTH))
        uncompiled = layers - _run_by_frames(model) if mode == PER_BLOCK else 0
    return f"{counter.frame_count}{f', {uncompiled} layers uncompiled' if uncompiled else ''}"


def _run_by_frames(model: Stack) -> int:
    """Layers that a compiled frame runs, of blocks that were compiled by themselves."""
    found = 0
    for layer in model.layers:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            layer(torch.ones(BATCH, WIDTH), model.entries)
        found += any("Compiled Region" in event.name for event in profile.events())
    return found


def kernels(mode: str, layers: int) -> int:
    with torch._inductor.config.patch({"cpp.enable_kernel_profile": True}), torch.no_grad():
        model, x = compiled(mode, layers, "plain", "inductor"), torch.ones(BATCH, WIDTH)
        model(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            model(x)
    return sum("cpp_fused" in event.name for event in profile.events())


def saved_bytes(mode: str, layers: int) -> str:
    model, x = compiled(mode, layers, "plain", "inductor"), torch.ones(BATCH, WIDTH)
    model(x).sum().backward()
    return f"{saved(model, lambda: model(x).sum().backward())[1] / 1024:.0f}"


class Checks:
    """Steps of one stack, whose operators cost the same in each mode."""

    def __init__(self, mode: str, layers: int) -> None:
        self.layers, self.model, self.x = layers, compiled(mode, layers, "plain", "eager"), torch.ones(BATCH, WIDTH)
        self.microseconds()

    def microseconds(self) -> float:
        """The least that a step takes, a layer."""
        times = []
        with torch.no_grad():
            for _ in range(STEPS):
                start = time.perf_counter()
                self.model(self.x)
                times.append(time.perf_counter() - start)
        return min(times) / self.layers * 1e6


def answers(mode: str) -> Callable[..., Any]:
    """Answers of the process that measures ``mode``."""
    checks = functools.cache(lambda layers: Checks(mode, layers))

    def answer(what: str, layers: int) -> Any:
        if what == "checks":
            return checks(layers).microseconds()
        if what in ("kernels", "saved"):
            return str(kernels(mode, layers) if what == "kernels" else saved_bytes(mode, layers))
        return compiles(mode, layers, "plain" if what == "compiles" else what)

    return answer


def table(rows: dict[str, list[str]], layers: int) -> str:
    lines = [
        f"{layers} blocks; what the columns are is said in benchmarks/ways.py.",
        conditions(),
        "",
        "| mode | compiles | numbered | break | kernels | saved, KB | checks, microseconds a layer |",
        "|---|---|---|---|---|---|---|",
        *(f"| {mode} | {' | '.join(cells)} |" for mode, cells in rows.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--serve", choices=CHOICES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        torch.set_num_threads(1)
        serve(answers(options.serve))
        return
    workers = {mode: Worker("benchmarks.ways", mode) for mode in CHOICES}
    try:
        rows = {mode: [workers[mode].ask(what=what, layers=options.layers) for what in COUNTED] for mode in CHOICES}
        times: dict[str, list[float]] = {mode: [] for mode in CHOICES}
        for mode in in_turns([*CHOICES], options.repeat):
            times[mode].append(workers[mode].ask(what="checks", layers=options.layers))
    finally:
        for worker in workers.values():
            worker.close()
    for mode, found in times.items():
        over = f", {min(found) - min(times[STOCK_FLAT]):+.1f}" if mode != STOCK_FLAT else ""
        rows[mode].append(f"{min(found):.1f} ({statistics.median(found):.1f}){over}")
    options.out.mkdir(parents=True, exist_ok=True)
    text = table(rows, options.layers)
    (options.out / "ways.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
