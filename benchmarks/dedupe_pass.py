"""Cost of the dedupe pass: compile time and peak memory of a graph, in each mode that needs no mark.

    python -m benchmarks.dedupe_pass [--sizes 1000 8000 80000] [--repeat 3]

Every measurement is a process of its own that traces one graph of like blocks (five operators
each) for a backend that does nothing. Ratios are over stock flat's: of the least of ``--repeat`` runs, taken in turns,
and of the medians in brackets.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

from benchmarks.modes import FLAG, MARK, MODES, STOCK_FLAT, conditions, environment, in_turns


OPERATORS_A_BLOCK = 5


def measure(operators: int, flag: bool) -> dict[str, float]:
    """CPU seconds to compile, and megabytes that the compile added to this process's peak."""
    import torch
    import torch._dynamo

    blocks = operators // OPERATORS_A_BLOCK

    def program(x):
        for _ in range(blocks):
            y = x.sin()
            z = y + x
            z = z * y
            z = z.cos()
            x = z - y
        return x

    torch._dynamo.config.use_graph_deduplication = flag
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    compiled = torch.compile(program, backend=lambda gm, _: gm.forward, fullgraph=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    compiled(torch.randn(4))
    seconds = time.process_time() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "megabytes": (after - before) / 1024, "peak": after / 1024}


def in_a_process(operators: int, mode: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.dedupe_pass", "--one", str(operators), "--mode", mode]
    out = subprocess.run(command, env=environment(mode), capture_output=True, text=True, check=False)
    if out.returncode:
        raise SystemExit(out.stderr)
    return json.loads(out.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 8000, 80000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.mode == FLAG)))
        return
    print(conditions())
    print("operators  mode          seconds  ratio (median)   megabytes  ratio (median)")
    for size in options.sizes:
        runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES if mode != MARK}
        for mode in in_turns([*runs], options.repeat):
            runs[mode].append(in_a_process(size, mode))
        for mode, found in runs.items():
            cells = []
            for what, digits in (("seconds", 2), ("megabytes", 0)):
                own, stock = ([run[what] for run in each] for each in (found, runs[STOCK_FLAT]))
                ratios = [of(own) / max(of(stock), 1e-9) for of in (min, statistics.median)]
                cells.append(f"{min(own):8.{digits}f} {ratios[0]:7.3f} ({ratios[1]:.3f})")
            print(f"{size:9d}  {mode:12s}", "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
