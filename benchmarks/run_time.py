"""What the flag costs at run time: paired steps of one model, overlay flat and with the flag, in one process.

    python -m benchmarks.run_time [MODEL...] [--phases infer train] [--sizes small large] [--layers 4] [--pairs 60]
        [--backend inductor] [--code DIR]

Overlay flat runs the code that stock flat has (test/models/test_neutral_models.py compares it to the byte). The two
take turns, and which of them begins does too. ``ratio`` is the median of the flag's CPU time over overlay flat's, pair
by pair, with the quartiles behind it. ``wall`` is the same of wall time. ``peak`` is the most that a step holds at
once over what was held when it began: the running sum of the CPU allocator's events, as `torch.profiler` records them
(``profile_memory``), so every tensor's bytes count, and nothing else of the process. ``small`` has kernels of
microseconds, where calls are what costs; in ``large`` the kernels are. ``--code`` keeps the code that Inductor made.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo.utils import counters

from benchmarks.modes import conditions


os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCABULARY = 256
HEADS = 4


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a model and its input."""

    hidden: int
    length: int
    batch: int


SIZES = {"small": Size(128, 32, 2), "large": Size(512, 256, 4)}


def _llama(size: Size, layers: int) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": size.hidden, "intermediate_size": 2 * size.hidden, "num_hidden_layers": layers}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    return LlamaModel(LlamaConfig(**sizes, **heads, vocab_size=VOCABULARY, use_cache=False))


def _gpt2(size: Size, layers: int) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2Model

    sizes = {"n_embd": size.hidden, "n_layer": layers, "n_head": HEADS, "vocab_size": VOCABULARY}
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    return GPT2Model(GPT2Config(**sizes, **tokens, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def _encoder_sizes(size: Size, layers: int) -> dict[str, Any]:
    sizes = {"hidden_size": size.hidden, "intermediate_size": 4 * size.hidden, "num_hidden_layers": layers}
    return {
        **sizes,
        "num_attention_heads": HEADS,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _bert(size: Size, layers: int) -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**_encoder_sizes(size, layers), vocab_size=VOCABULARY))


def _vit(size: Size, layers: int) -> torch.nn.Module:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(**_encoder_sizes(size, layers), image_size=_edge(size), patch_size=8))


def _edge(size: Size) -> int:
    """Of an image that has about as many patches as a text has tokens."""
    return 8 * int(size.length**0.5)


MODELS: dict[str, Callable[[Size, int], torch.nn.Module]] = {
    "llama": _llama,
    "gpt2": _gpt2,
    "bert": _bert,
    "vit": _vit,
}


def _input(name: str, size: Size) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.rand((size.batch, 3, _edge(size), _edge(size)), generator=generator)}
    return {"input_ids": torch.randint(3, VOCABULARY - 3, (size.batch, size.length), generator=generator)}


def _with_own_code(call: Any, name: str) -> Any:
    """A function like ``call`` that shares no compiled code with others: guards do not tell two models apart."""
    return types.FunctionType(call.__code__.replace(co_name=name), call.__globals__, name, None, call.__closure__)


def _compiled(name: str, size: Size, options: argparse.Namespace, flag: bool, train: bool) -> Callable[[], None]:
    """A step of the model, compiled by its first call."""
    torch.manual_seed(0)
    model = MODELS[name](size, options.layers)
    model.train(train)
    arguments = _input(name, size)
    run = torch.compile(
        _with_own_code(lambda: model(**arguments), f"{name}_{flag}"), backend=options.backend, fullgraph=True
    )

    def step() -> None:
        with torch.set_grad_enabled(train):
            result = run().last_hidden_state
            if train:
                result.pow(2).mean().backward()
                model.zero_grad(set_to_none=True)

    counters.clear()
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        step()
    if bool(counters["graph_deduplication"]["calls"] + counters["regions"]["reused"]) != flag:
        raise RuntimeError(f"{name}: the flag made no region, or there is one without it")
    return step


def peak(step: Callable[[], None]) -> int:
    """Bytes that a step holds at most, over what was held when it began."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _pairs(flat: Callable[[], None], flag: Callable[[], None], number: int) -> list[list[tuple[float, float]]]:
    """CPU and wall seconds of overlay flat and flag, pair by pair."""
    seconds: list[list[tuple[float, float]]] = []
    for turn in range(number):
        pair = {}
        for step in (flat, flag) if turn % 2 else (flag, flat):
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            pair[step] = time.process_time() - cpu, time.perf_counter() - wall
        seconds.append([pair[flat], pair[flag]])
    return seconds


def measure(name: str, size: Size, options: argparse.Namespace, train: bool) -> str:
    """One line of figures."""
    torch._dynamo.reset()
    steps = []
    for flag in (False, True):
        if options.code:
            torch._inductor.config.trace.enabled = True
            torch._inductor.config.trace.debug_dir = str(options.code / f"{name}-{train}-{size.hidden}-{flag}")
        steps.append(_compiled(name, size, options, flag, train))
    flat, flag_step = steps
    _pairs(flat, flag_step, 5)
    seconds = _pairs(flat, flag_step, options.pairs)
    cpu, wall = ([flag[i] / flat[i] for flat, flag in seconds] for i in (0, 1))
    low, middle, high = statistics.quantiles(cpu, n=4)
    spent = [flat[0] * 1e3 for flat, _ in seconds]
    bytes_flat, bytes_flag = peak(flat), peak(flag_step)
    return (
        f"{statistics.median(spent):9.2f} ({min(spent):.2f})"
        f" {middle:7.3f} ({low:.3f} to {high:.3f}) {statistics.median(wall):6.3f}"
        f" {bytes_flat / 2**20:9.2f} {bytes_flag / bytes_flat:6.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", help="all when none is named")
    parser.add_argument("--phases", nargs="+", default=["infer", "train"], choices=["infer", "train"])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--code", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(conditions())
    print("model  phase  size   overlay flat, ms: median (least)   flag: ratio (quartiles)   wall  peak, MB  ratio")
    for name in options.models or MODELS:
        for phase in options.phases:
            for size in options.sizes:
                figures = measure(name, SIZES[size], options, phase == "train")
                print(f"{name:6s} {phase:6s} {size:5s} {figures}", flush=True)


if __name__ == "__main__":
    main()
