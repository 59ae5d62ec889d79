"""What the overlay adds to `import torch`: the median over pairs of fresh processes, overlay on and off in turn.

usage: python benchmarks/import_cost.py [PAIRS]     exit status 1 when it adds 5 ms or more
Measured inside each process, from before `import torch` to after it, so that starting Python does not count.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys


CODE = """
import time
started = time.perf_counter()
import torch
print(time.perf_counter() - started)
"""
# What the entry point itself takes: the difference of whole imports is at the edge of their noise.
HOOK = """
import sys, time
import torch
for name in [name for name in sys.modules if name.startswith("torch_regions")]:
    del sys.modules[name]
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "OverlayFinder"]
started = time.perf_counter()
import torch_regions._activate
torch_regions._activate.activate()
print(time.perf_counter() - started)
"""


def measure(code: str, setting: str) -> float:
    environment = {**os.environ, "TORCH_REGIONS": setting}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout) * 1e3


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    measure(CODE, "1")
    off, on = zip(*((measure(CODE, "0"), measure(CODE, "1")) for _ in range(pairs)), strict=True)
    hook = statistics.median(measure(HOOK, "1") for _ in range(pairs))
    print(f"import torch, overlay off: {statistics.median(off):8.1f} ms (median of {pairs}, from {min(off):.1f})")
    print(f"import torch, overlay on:  {statistics.median(on):8.1f} ms (median of {pairs}, from {min(on):.1f})")
    print(f"the overlay's entry point: {hook:8.2f} ms")
    return 0 if hook < 5 else 1


if __name__ == "__main__":
    raise SystemExit(main())
