"""How much longer a deep model takes to compile than a shallow one of the same blocks, all counted.

    python -m benchmarks.cold_compile [--models llama gpt2 bert vit] [--phases infer train] [--layers 2 32]
        [--mode flag] [--pairs 5]

Each compile is the first of its process, with no cache and an empty directory for kernels: imports on the way, the look
at what the C++ compiler can do, all kernels, Dynamo's guards and the first run are in. Wall time in seconds, from the
first call (and its backward) to its end. Shallow and deep take turns, the ratio is that of each pair, and the median of
the pairs is what counts, since the speed of a machine wanders; the quotient of the least of each stands in brackets.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from benchmarks.backend_cost import first_step
from benchmarks.modes import FLAG, MODES, conditions, environment


PHASES = ("infer", "train")


def cold(name: str, phase: str, mode: str, layers: int) -> float:
    """Seconds of the first step of a fresh process."""
    variables = environment(mode, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1")
    command = [sys.executable, "-m", "benchmarks.cold_compile", "--one", name, phase, mode, str(layers)]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["all"])


def _one(name: str, phase: str, mode: str, layers: str) -> None:
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        print(json.dumps(first_step(name, f"inductor-{phase}", mode, int(layers))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama", "gpt2", "bert", "vit"])
    parser.add_argument("--phases", nargs="+", default=PHASES, choices=PHASES)
    parser.add_argument("--layers", type=int, nargs=2, default=[2, 32])
    parser.add_argument("--mode", default=FLAG, choices=MODES)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _one(*options.one)
        return
    print(conditions())
    for phase in options.phases:
        for name in options.models:
            pairs = [[cold(name, phase, options.mode, n) for n in options.layers] for _ in range(options.pairs)]
            median = statistics.median(deep / shallow for shallow, deep in pairs)
            least = [min(pair[i] for pair in pairs) for i in (0, 1)]
            seconds = ", ".join(f"{deep:.1f}/{shallow:.1f}" for shallow, deep in pairs)
            print(f"{name:6} {phase:5} {median:.3f} ({least[1] / least[0]:.3f})  {seconds}", flush=True)


if __name__ == "__main__":
    main()
