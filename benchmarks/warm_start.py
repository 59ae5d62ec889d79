"""What a start from a filled cache costs, and where the time goes: Llama with regions, in processes of their own.

    python -m benchmarks.warm_start [--layers 32] [--mode "stock flat"|"overlay flat"|flag|mark] [--train]

First a process compiles half of the layers into an empty cache folder. Then one compiles all of them: the body of the
layers is in the folder. Another one does so again: everything it needs is there. Times are those of torch's own
phases; "ours" is the overlay's part of the key.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.modes import FLAG, MARK, MODES, conditions, environment


PHASES = {
    "Dynamo: trace the program": "bytecode_tracing",
    "Dynamo: make guards": "build_guards",
    "backend, all of it": "OutputGraph.call_user_compiler",
    "  key": "key",
    "  lookup and load": "AOTAutogradCache.inductor_load",
    "  AOTAutograd": "create_aot_dispatcher_function",
    "  Inductor": "compile_fx_inner",
    "  C++ compiler": "compile_file",
}


def step(called: Any, model: Any, tokens: Any, train: bool) -> list[Any]:
    """The model's result and, in training, the gradients of its parameters."""
    import torch

    logits = called(tokens, use_cache=False).logits
    return [logits, *(torch.autograd.grad(logits.square().mean(), list(model.parameters())) if train else ())]


def compile_once(layers: int, mode: str, train: bool = False) -> dict[str, float]:
    import torch
    import transformers
    from torch._dynamo.utils import compilation_time_metrics, counters
    from torch._functorch._aot_autograd import autograd_cache

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4, vocab_size=128
    )
    model = transformers.LlamaForCausalLM(config).eval()
    if mode == MARK:
        for layer in model.model.layers:
            layer.forward = torch.compiler.nested_compile_region(layer.forward)
    torch._dynamo.config.use_graph_deduplication = mode == FLAG
    spent = {"key": 0.0}
    original = autograd_cache.autograd_cache_key

    def timed(*arguments):
        start = time.perf_counter()
        try:
            return original(*arguments)
        finally:
            spent["key"] += time.perf_counter() - start

    autograd_cache.autograd_cache_key = timed
    tokens = torch.arange(16).reshape(1, 16)
    with torch.set_grad_enabled(train):
        expected = step(model, model, tokens, train)
        start = time.perf_counter()
        actual = step(torch.compile(model), model, tokens, train)
        spent["first call"] = time.perf_counter() - start
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
    for phase, times in compilation_time_metrics.items():
        spent[phase] = spent.get(phase, 0.0) + sum(times)
    found = counters["aot_autograd"]
    spent["hits"], spent["misses"] = found["autograd_cache_hit"], found["autograd_cache_miss"]
    for outcome in ("lowered", "found"):
        spent[f"bodies {outcome}"] = counters["region_bodies"][outcome]
    return spent


def run(folder: str, layers: int, mode: str, train: bool) -> dict[str, float]:
    env = environment(mode, TORCHINDUCTOR_CACHE_DIR=folder, TORCHINDUCTOR_COMPILE_THREADS="1")
    command = [sys.executable, "-m", "benchmarks.warm_start", "--worker", "--layers", str(layers), "--mode", mode]
    command += ["--train"] if train else []
    out = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--mode", choices=MODES, default=MARK)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(compile_once(options.layers, options.mode, options.train)))
        return
    half = options.layers // 2
    with tempfile.TemporaryDirectory() as folder:
        columns = {f"{half}, cold": run(folder, half, options.mode, options.train)}
        columns[f"{options.layers}, after {half}"] = run(folder, options.layers, options.mode, options.train)
        columns[f"{options.layers}, warm"] = run(folder, options.layers, options.mode, options.train)
    title = f"{options.mode}{', training' if options.train else ''}, seconds"
    print(conditions())
    print(title.ljust(34) + "".join(f"{name:>16}" for name in columns))
    for words, phase in {"first call": "first call", **PHASES}.items():
        print(words.ljust(34) + "".join(f"{c.get(phase, 0.0):>16.2f}" for c in columns.values()))
    for count in ("hits", "misses", "bodies lowered", "bodies found"):
        print(count.ljust(34) + "".join(f"{int(c[count]):>16}" for c in columns.values()))


if __name__ == "__main__":
    main()
