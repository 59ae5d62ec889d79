"""What the first call costs, cold and warm: torch as it is, each block compiled by itself, and regions.

    python -m benchmarks.first_call [--models llama gpt2 vit dit] [--phases infer train] [--layers 2 8 16 32 64]
        [--modes "stock flat" "per-block compile" mark flag] [--backend inductor] [--repeat 3] [--missing] [--out DIR]
    python -m benchmarks.first_call --profile flag [--models llama] [--phases train] [--layers 16]

A first call is the first of its process, with its backward in training: what a compile imports is in it. It is
measured as wall time, CPU time of the process, and CPU time of the processes that it starts (the C++ compiler and
torch's compile workers), in seconds. A cold call finds an empty cache folder. A warm one, in another process, finds
what the cold one left there. Modes take turns. Results, gradients, buffers and the random state must equal those of
stock flat, which is always among the modes, or a line below the table says what differs.

A cell has the least and, in brackets, the median. A ratio is over per-block compile with as many layers; "deep" is the
most layers over the fewest. ``--profile`` prints the stages of one cold and one warm call of a mode, as torch reports
them, and the functions in which the cold one spends most CPU time itself.

Writes DIR/first_call.md and first_call.json (benchmarks/kept.py).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
import torch._dynamo

from benchmarks.compare import compiled_in
from benchmarks.kept import Kept, add_missing_option
from benchmarks.modes import FLAG, MARK, PER_BLOCK, STOCK_FLAT, environment, in_turns
from benchmarks.zoo_more import build
from benchmarks.zoo_table import difference, seen_of


CHOICES = (STOCK_FLAT, PER_BLOCK, MARK, FLAG)
PHASES = ("infer", "train")
# Name in the table -> name of the architecture
MODELS = {"llama": "llama", "gpt2": "gpt2", "vit": "vit", "bert": "bert", "dit": "flux"}
TIMES = ("wall", "cpu", "children")
STATES = ("cold", "warm")
Runs = dict[str, dict[str, list[float]]]  # cold or warm -> time -> seconds of each turn


def _of_children() -> float:
    """CPU seconds of all processes that this one has started, also of those that have ended."""
    times = os.times()
    found = times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            spent = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found += spent.user + spent.system + spent.children_user + spent.children_system
    return found


def _one(mode: str, name: str, phase: str, layers: int, backend: str, file: str, profile: bool) -> dict[str, Any]:
    """The first call of this process; what can be seen of it goes into ``file``."""
    torch.set_num_threads(1)
    torch._dynamo.config.use_graph_deduplication = mode == FLAG
    example, train = build(name, layers), phase == "train"
    example.model.train(train)
    compiled = compiled_in(mode, name, example.model, backend)
    functions = cProfile.Profile(time.process_time)
    torch.manual_seed(1)
    children, start, cpu = _of_children(), time.perf_counter(), time.process_time()
    with torch.set_grad_enabled(train):
        if profile:
            functions.enable()
        out = example.call(compiled)
        if train:
            out.float().pow(2).mean().backward()
        functions.disable()
    found: dict[str, Any] = {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}
    found["children"] = _of_children() - children
    stages = torch._dynamo.utils.compilation_time_metrics
    found["stages"] = {stage: sum(times) for stage, times in stages.items()}
    torch.save(seen_of(out, example.model), file)
    if profile:
        pstats.Stats(functions, stream=sys.stderr).sort_stats("tottime").print_stats(40)
    return found


def _ask(mode: str, folder: str, *what: str) -> dict[str, Any]:
    """The first call of a new process whose cache folder is ``folder``."""
    command = [sys.executable, "-m", "benchmarks.first_call", "--one", mode, *what]
    variables = environment(mode, TORCHINDUCTOR_CACHE_DIR=folder)
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, phase: str, layers: int, options: argparse.Namespace) -> tuple[dict[str, Runs], list[str]]:
    """For each mode, the seconds of all turns; and what differs from stock flat."""
    modes = sorted({STOCK_FLAT, *options.modes}, key=CHOICES.index)
    found: dict[str, Runs] = {mode: {state: {each: [] for each in TIMES} for state in STATES} for mode in modes}
    said: dict[str, None] = {}
    with tempfile.TemporaryDirectory() as results:
        for mode in in_turns(modes, options.repeat):
            with tempfile.TemporaryDirectory() as folder:
                for state in STATES:
                    file = str(Path(results) / mode.replace(" ", "_"))
                    what = (MODELS[name], phase, str(layers), options.backend, file, "")
                    seconds = _ask(mode, folder, *what)
                    for each in TIMES:
                        found[mode][state][each].append(seconds[each])
                    if mode == STOCK_FLAT:
                        continue
                    differs = difference(torch.load(str(Path(results) / "stock_flat")), torch.load(file))
                    if differs:
                        said[f"{name}, {phase}, {layers} layers, {mode}, {state}: {differs} differ"] = None
    return found, [*said]


def _cell(runs: Runs, beside: Runs | None, state: str) -> str:
    parts = []
    for each in TIMES:
        least, median = min(runs[state][each]), statistics.median(runs[state][each])
        text = f"{least:.1f} ({median:.1f})"
        if beside is not None and beside is not runs and each != "children":
            text += f" {least / max(min(beside[state][each]), 1e-9):.2f}x"
        parts.append(text)
    return "; ".join(parts)


def table(rows: dict[tuple[str, str, int], dict[str, Runs]], said: list[str], head: str) -> str:
    """The rows as Markdown."""
    lines = [head, "", "A cell: wall; CPU of the process; CPU of its children, in seconds."]
    for state in STATES:
        modes = [*next(iter(rows.values()))]
        lines += ["", f"### {state}", "", f"| model | phase | layers | {' | '.join(modes)} |"]
        lines.append("|---" * (len(modes) + 3) + "|")
        for (name, phase, layers), row in rows.items():
            cells = [_cell(runs, row.get(PER_BLOCK), state) for runs in row.values()]
            lines.append(f"| {name} | {phase} | {layers} | {' | '.join(cells)} |")
    lines += ["", "### deep", ""]
    for name, phase in dict.fromkeys((name, phase) for name, phase, _ in rows):
        sizes = [layers for one, other, layers in rows if (one, other) == (name, phase)]
        few, many = rows[name, phase, min(sizes)], rows[name, phase, max(sizes)]
        ratios = [
            f"{mode} {min(many[mode]['cold']['wall']) / max(min(few[mode]['cold']['wall']), 1e-9):.2f}" for mode in few
        ]
        lines.append(f"- {name}, {phase}, {max(sizes)} layers over {min(sizes)}, cold, wall: {', '.join(ratios)}")
    return "\n".join([*lines, "", *(said or ["Each mode gives the results of stock flat."])]) + "\n"


def _print_profile(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        name, phase, layers = options.models[0], options.phases[0], str(options.layers[0])
        for state, profile in (("cold", "profile"), ("warm", "")):
            what = (MODELS[name], phase, layers, options.backend, str(Path(folder) / "results"), profile)
            found = _ask(options.profile, str(Path(folder) / "cache"), *what)
            print(
                f"{name}, {phase}, {layers} layers, {options.profile}, {state}: {found['wall']:.2f} s wall", flush=True
            )
            for stage, seconds in sorted(found["stages"].items(), key=lambda each: -each[1])[:25]:
                print(f"{seconds:9.3f}  {stage}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama", "gpt2", "vit", "dit"], choices=MODELS)
    parser.add_argument("--phases", nargs="+", default=PHASES, choices=PHASES)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 8, 16, 32, 64])
    parser.add_argument("--modes", nargs="+", default=CHOICES, choices=CHOICES)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", choices=CHOICES)
    add_missing_option(parser)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--one", nargs=7, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        mode, name, phase, layers, backend, file, profile = options.one
        print(json.dumps(_one(mode, name, phase, int(layers), backend, file, bool(profile))))
        return
    if options.profile:
        _print_profile(options)
        return
    kind = {"modes": [*options.modes], "backend": options.backend, "repeat": options.repeat}
    kept = Kept(options.out / "first_call.json", _order, kind)
    asked = [f"{n} {p} {layers}" for n in options.models for p in options.phases for layers in options.layers]
    for row in kept.wanted(asked, options.missing):
        name, phase, layers = row.split()
        runs, said = measure(name, phase, int(layers), options)
        kept.add(row, {"runs": runs, "said": said})
        (options.out / "first_call.md").write_text(_table_of(kept))
    print(_table_of(kept))


def _order(row: str) -> tuple[int, str, int]:
    name, phase, layers = row.split()
    return [*MODELS].index(name), phase, int(layers)


def _table_of(kept: Kept) -> str:
    rows, said = {}, []
    for row, found in kept.rows.items():
        name, phase, layers = row.split()
        rows[name, phase, int(layers)] = found["runs"]
        said += found["said"]
    return table(rows, said, kept.conditions())


if __name__ == "__main__":
    main()
