"""The code that Inductor writes for CUDA, overlay flat and with the flag, for ten small models: no GPU is needed.

usage: python -m benchmarks.cuda_code [MODEL ...]      writes their rows in docs/figures/cuda_code.md

Each model is compiled for inference and for training on a device that is not there (test/testing/cuda_device.py). Its
wrappers run on fake tensors, which counts launches, copies and the memory that is alive; all kernels are compiled by
Triton and ptxas.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


ROOT = Path(__file__).resolve().parents[1]
WORKER = ROOT / "test" / "testing" / "cuda_worker.py"
RESULT = Path(__file__).parents[1] / "docs" / "figures" / "cuda_code.md"
MODELS = ("llama", "qwen3", "gemma2", "gpt2", "opt", "bert", "vit", "t5", "whisper", "convnext")

HEAD = """# Code for CUDA, with the flag and overlay flat

Made by `python -m benchmarks.cuda_code` with torch {torch} and triton {triton}, where there is no GPU: models of
[zoo.py](../zoo.py) and [zoo_more.py](../zoo_more.py) with {layers} layers (a stage or stack), {dtype}, random weights.
Each cell is overlay flat → flag.

- **kernels**: different Triton kernels, by content; *new*: those of the flag's that overlay flat has not. What it keeps
  in registers between two layers is an operand or a result of a call here, so a fused kernel becomes two others.
- **launches**: of Triton kernels in one step; *crossing*: buffers that are made for a call or returned by one. That is
  what boundaries explain, but for what overlay flat computes once for all layers (a mask made ready for attention)
  and each call by itself.
- **operators**: launches of torch's own kernels (matrix products, attention, convolutions).
- **copies**: launches that only move data.
- **peak**: bytes alive at once in a step, parameters included, flag / overlay flat.
- **compiled**: kernels that Triton and ptxas compiled, in their first configuration; a failure would end the run.
- **wrong**: launches outside of the device guard or on another stream, and arguments that are not aligned as the kernel
  was told.

What this does not show is time. `make gpu` measures it where there is a GPU.

| model | step | bodies | kernels | new | launches | crossing | operators | copies | peak | compiled | wrong |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def measure(model: str, *options: str) -> dict[str, dict[str, Any]]:
    """What the worker says of ``model``: the code of overlay flat and of the flag."""
    command = [sys.executable, str(WORKER), model, *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(model: str, step: str, found: dict[str, dict[str, Any]]) -> str:
    flat, flag = found["overlay flat"], found["flag"]
    new = len(set(flag["kernels"]) - set(flat["kernels"]))
    both = {
        "kernels": (len(flat["kernels"]), len(flag["kernels"])),
        "launches": (flat["launches"], flag["launches"]),
        "operators": (sum(flat["operators"].values()), sum(flag["operators"].values())),
        "copies": (flat["copies"], flag["copies"]),
        "compiled": (flat["compiled"], flag["compiled"]),
        "wrong": (len(flat["wrong"]), len(flag["wrong"])),
    }
    text = {name: f"{one} → {other}" for name, (one, other) in both.items()}
    cells = [
        *(model, step, str(flag["bodies"]), text["kernels"], str(new), text["launches"], str(flag["crossings"])),
        *(text["operators"], text["copies"], f"{flag['peak'] / flat['peak']:.3f}", text["compiled"], text["wrong"]),
    ]
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    import importlib.metadata

    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton")}
    head = HEAD.format(**versions, layers=given.layers, dtype=given.dtype)
    there = RESULT.read_text() if RESULT.exists() else ""
    # Rows that were made otherwise go.
    rows = there.removeprefix(head).splitlines(keepends=True) if there.startswith(head) else []
    for model in given.models:
        for step in ("inference", "training"):
            options = ["--ptx", "--layers", str(given.layers), "--dtype", given.dtype]
            found = measure(model, *options, *(["--training"] if step == "training" else []))
            rows = [other for other in rows if not other.startswith(f"| {model} | {step} |")]
            rows.append(row(model, step, found))
            print(rows[-1], end="", flush=True)
            RESULT.write_text(head + "".join(rows))


if __name__ == "__main__":
    main()
