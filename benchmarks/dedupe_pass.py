"""Cost of the dedupe pass: compile time and peak memory of a graph with the flag, over without.

    python -m benchmarks.dedupe_pass [--sizes 1000 8000 80000] [--repeat 3]

Every measurement is a process of its own that traces one graph of like blocks (five operators
each) for a backend that does nothing. Ratios are of the best of ``--repeat`` runs, taken in turns.
TORCH_REGIONS=0 measures stock.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time


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


def in_a_process(operators: int, flag: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.dedupe_pass", "--one", str(operators)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = subprocess.run(command + ["--flag"] * flag, env=env, capture_output=True, text=True, check=False)
    if out.returncode:
        raise SystemExit(out.stderr)
    return json.loads(out.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 8000, 80000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--flag", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.flag)))
        return
    print("operators   flat s   flag s   time    flat MB  flag MB   memory")
    for size in options.sizes:
        runs = [[in_a_process(size, flag) for flag in (False, True)] for _ in range(options.repeat)]
        flat, flag = ({k: min(r[i][k] for r in runs) for k in runs[0][i]} for i in (0, 1))
        print(
            f"{size:9d} {flat['seconds']:8.2f} {flag['seconds']:8.2f}"
            f" {flag['seconds'] / flat['seconds'] - 1:+7.1%}"
            f" {flat['megabytes']:10.0f} {flag['megabytes']:8.0f}"
            f" {flag['megabytes'] / max(flat['megabytes'], 1) - 1:+8.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
