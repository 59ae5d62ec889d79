"""What regions give on a GPU: overlay flat, each block compiled by itself, marked blocks, and the flag.

usage: make gpu [TORCH=2.15.0], or python -m benchmarks.gpu [MODEL ...]      without a GPU it says so, and does nothing

For each way a process of its own, with empty caches: the first step, a steady step, peak memory, and the greatest
difference of a result or gradient from eager's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

from benchmarks import zoo, zoo_more


WAYS = ("overlay flat", "per block", "mark", "flag")
MODELS = ("llama", "gpt2", "bert", "vit", "t5", "whisper")
STEPS = 50


def _moved(example: Any, device: str) -> None:
    """Moves an example, and the inputs that its call closes over, to ``device``."""
    example.model.to(device)
    for cell in example.call.__closure__ or ():
        if not isinstance(cell.cell_contents, torch.nn.Module):
            cell.cell_contents = torch.utils._pytree.tree_map_only(
                torch.Tensor, lambda tensor: tensor.to(device), cell.cell_contents
            )


def _outcome(example: Any, model: Any) -> list[torch.Tensor]:
    """The result of a training step and its gradients."""
    example.model.zero_grad(set_to_none=True)
    result = example.call(model)
    result.float().square().mean().backward()
    # A compiled function may give zeros to what the result does not depend on.
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in example.model.parameters()]
    return [result.detach(), *(gradient.detach().clone() for gradient in gradients)]


def run(name: str, way: str, layers: int, device: str) -> dict[str, float]:
    """One way, in this process."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    example = zoo_more.build(name, layers)
    _moved(example, device)
    expected = _outcome(example, example.model)
    model: Any = example.model
    torch._dynamo.config.use_graph_deduplication = way == "flag"
    if way == "mark":
        zoo.mark_blocks(name, model)
    if way == "per block":
        for block in zoo.blocks(name, model):
            block.compile()
    else:
        model = torch.compile(model)
    started = time.perf_counter()
    found = _outcome(example, model)
    wait()
    first = time.perf_counter() - started
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    for _ in range(STEPS):
        _outcome(example, model)
    wait()
    steady = (time.perf_counter() - started) / STEPS
    return {
        "first call, s": first,
        "step, ms": 1000 * steady,
        "peak, MB": torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else float("nan"),
        "difference": max(float((a - b).abs().max()) for a, b in zip(expected, found, strict=True)),
    }


def _apart(name: str, way: str, given: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.gpu", name, "--way", way, "--layers", str(given.layers)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        done = subprocess.run(
            [*command, "--device", given.device], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--device", default="cuda", help="another one is for tests of this program")
    parser.add_argument("--way", choices=WAYS, help="only this one, here; prints JSON")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("There is no GPU that torch can use here, so nothing is measured.")
        return
    if given.way:
        print(json.dumps(run(given.models[0], given.way, given.layers, given.device)))
        return
    for name in given.models:
        for way in WAYS:
            numbers = _apart(name, way, given)
            print(f"{name:10} {way:10}", *(f"{what}: {number:.4g}" for what, number in numbers.items()), flush=True)


if __name__ == "__main__":
    main()
