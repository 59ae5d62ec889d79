"""What a start from a filled cache costs, and where the time goes: Llama with regions, in processes of their own.

    python benchmarks/warm_start.py [--layers 32] [--way flag|mark|flat]

First a process compiles half of the layers into an empty cache folder. Then one compiles all of them, and another one
does so again: everything it needs is in the folder. Times are those of torch's own phases; "ours" is the overlay's
part of the key.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time


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


def compile_once(layers: int, way: str) -> dict[str, float]:
    import torch
    import transformers
    from torch._dynamo.utils import compilation_time_metrics, counters
    from torch._functorch._aot_autograd import autograd_cache

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4, vocab_size=128
    )
    model = transformers.LlamaForCausalLM(config).eval()
    if way == "mark":
        for layer in model.model.layers:
            layer.forward = torch.compiler.nested_compile_region(layer.forward)
    torch._dynamo.config.use_graph_deduplication = way == "flag"
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
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
        start = time.perf_counter()
        actual = torch.compile(model)(tokens, use_cache=False).logits
        spent["first call"] = time.perf_counter() - start
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
    for phase, times in compilation_time_metrics.items():
        spent[phase] = spent.get(phase, 0.0) + sum(times)
    found = counters["aot_autograd"]
    spent["hits"], spent["misses"] = found["autograd_cache_hit"], found["autograd_cache_miss"]
    spent["kernels found"] = counters["inductor"].get("fxgraph_cache_hit", 0)
    return spent


def run(folder: str, layers: int, way: str) -> dict[str, float]:
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, __file__, "--worker", "--layers", str(layers), "--way", way]
    out = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--way", choices=["flag", "mark", "flat"], default="mark")
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(compile_once(options.layers, options.way)))
        return
    half = options.layers // 2
    with tempfile.TemporaryDirectory() as folder:
        columns = {f"{half}, cold": run(folder, half, options.way)}
        columns[f"{options.layers}, after {half}"] = run(folder, options.layers, options.way)
        columns[f"{options.layers}, warm"] = run(folder, options.layers, options.way)
    print(f"{options.way}, seconds".ljust(34) + "".join(f"{name:>16}" for name in columns))
    for words, phase in {"first call": "first call", **PHASES}.items():
        print(words.ljust(34) + "".join(f"{c.get(phase, 0.0):>16.2f}" for c in columns.values()))
    for count in ("hits", "misses", "kernels found"):
        print(count.ljust(34) + "".join(f"{int(c[count]):>16}" for c in columns.values()))


if __name__ == "__main__":
    main()
