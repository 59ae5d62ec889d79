"""A fixed sample of the fuzzer's programs: regions change nothing of them.

``FUZZ_SECONDS`` limits the time of all samples together, ``FUZZ_SEED`` takes others; ``make fuzz`` runs more.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest


# Searches of each backend. A search is at most 120 programs.
SAMPLES = {"eager": 3, "aot_eager": 2, "inductor": 1}
SECONDS = {"eager": 60.0, "aot_eager": 40.0, "inductor": 30.0}


@pytest.mark.parametrize("backend", SAMPLES)
def test_regions_change_nothing_of_sampled_programs(backend, tmp_path):
    share = SECONDS[backend] / sum(SECONDS.values())
    asked = os.environ.get("FUZZ_SECONDS")
    env = {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "FUZZ_SECONDS": str(float(asked) * share if asked else SECONDS[backend]),
        "FUZZ_SEARCHES": str(SAMPLES[backend]),
        "FUZZ_BACKEND": backend,
        "FUZZ_JOBS": "1",
        "FUZZ_FINDS": str(tmp_path / "finds"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = [sys.executable, str(Path(__file__).parent / "fuzz_workers.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    finds = "\n".join(path.read_text() for path in sorted((tmp_path / "finds").glob("*.py"))[:2])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}\n{finds}"
    # A sample in which no call is reused shows nothing. Verification traces, so it never reuses.
    assert any("with reuse" in line and " 0 with reuse" not in line for line in done.stdout.splitlines()), done.stdout
