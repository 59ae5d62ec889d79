"""Without flag and mark, the compilations of models are stock's, to the byte: graphs, metadata, guards, logs, counters."""

import difflib
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from testing import vectors
from testing.cases import some

from benchmarks.zoo_more import ALL


REPO = Path(__file__).resolve().parents[2]


def _start(name, setting, file):
    environment = vectors.environment_without("TORCH")
    environment |= {"TORCH_REGIONS": setting, "PYTHONHASHSEED": "0", "PYTHONPATH": str(REPO)}
    worker = REPO / "test" / "testing" / "neutral_worker.py"
    return subprocess.Popen([sys.executable, str(worker), name], stdout=file, env=environment, stderr=subprocess.PIPE)


@pytest.mark.parametrize("name", some(ALL, ["llama"]))
def test_compilations_of_a_model_are_stocks(name, tmp_path):
    paths = {setting: tmp_path / f"{setting}.txt" for setting in ("0", "strict")}
    for setting, path in paths.items():
        with path.open("w") as file:
            run = _start(name, setting, file)
            _, errors = run.communicate(timeout=600)
        assert run.returncode == 0, errors.decode()[-2000:]
        assert b"OverlayWarning" not in errors
    stock, ours = (paths[setting].read_text().splitlines() for setting in ("0", "strict"))
    for text in ("dynamo class GraphModule", "forward class", "backward class", "TENSOR_MATCH", "TRACE starts_line"):
        assert any(text in line for line in stock), f"no {text}: nothing is compared"
    assert sum(line.startswith("==") for line in stock) == 2
    if stock != ours:
        changes = difflib.unified_diff(stock[:200_000], ours[:200_000], "stock", "overlay", lineterm="", n=1)
        raise AssertionError("\n".join(itertools.islice(changes, 60)))
