"""The first training step through transformers' ``Trainer``, accelerate and peft, in three modes.

    python -m benchmarks.frameworks [ROW...] [--layers 8] [--backend inductor] [--repeat 3] [--out DIR]

Each turn is a process of its own with an empty compile cache, and the modes (benchmarks/modes.py) take turns.
``per-block compile`` is accelerate's own: ``use_regional_compilation`` of its dynamo plugin, which ``Trainer`` takes
from the environment.

- ``CPU``: CPU seconds of the process in the first step, by the least of the turns, and in brackets by the median.  What
  the least of the later steps takes is subtracted.  The processes of the C++ compiler are not in it, nor what the first
  compile of any process imports: a small module is compiled before.
- ``compilers``: CPU seconds of those processes, the least of the turns.
- ``outlined``: operators in bodies, of all operators of the graphs.
- ``losses``: whether the losses of all steps are those of stock flat: ``bits``, ``close``, or NO.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from benchmarks.modes import FLAG, PER_BLOCK, STOCK_FLAT, conditions, environment, equality, in_turns, options_of_rows


MODES = (STOCK_FLAT, PER_BLOCK, FLAG)
STEPS = 4


class Clock:
    """CPU seconds of each step, of this process and of its children."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []

    def start(self) -> None:
        self._at = self._now()

    def stop(self) -> None:
        self.steps.append(tuple(now - then for now, then in zip(self._now(), self._at)))  # type: ignore[arg-type]

    @staticmethod
    def _now() -> tuple[float, float]:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time(), children.ru_utime + children.ru_stime


def _llama(layers: int, **more: Any) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, use_cache=False, **sizes, **heads, **more))


def _gpt2(layers: int) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=128, n_layer=layers, n_head=4, vocab_size=512, use_cache=False))


def _examples() -> list[dict[str, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(0)
    return [{"input_ids": (ids := torch.randint(0, 512, (32,), generator=drawn)), "labels": ids} for _ in range(16)]


def _trainer(model: torch.nn.Module, mode: str, backend: str, clock: Clock, **more: Any) -> list[float]:
    """The losses of a run of ``Trainer``."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Timing(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock.start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.stop()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            torch_compile=True,
            torch_compile_backend=backend,
            max_steps=STEPS,
            per_device_train_batch_size=2,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            **more,
        )
        if mode == PER_BLOCK:
            os.environ["ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"] = "true"
        trainer = Trainer(model, arguments, train_dataset=_examples(), callbacks=[Timing()])
        trainer.train()
        return [each["loss"] for each in trainer.state.log_history if "loss" in each]


def _accelerate(model: torch.nn.Module, mode: str, backend: str, clock: Clock, **more: Any) -> list[float]:
    """The losses of a loop that accelerate prepares."""
    from accelerate import Accelerator
    from accelerate.utils import TorchDynamoPlugin

    plugin = TorchDynamoPlugin(backend=backend, use_regional_compilation=mode == PER_BLOCK)
    accelerator = Accelerator(cpu=True, dynamo_plugin=plugin, **more)
    prepared = accelerator.prepare(model)
    return _loop(prepared, clock, accelerator.backward)


def _loop(model: Any, clock: Clock, backward: Callable[[Any], None] = torch.Tensor.backward) -> list[float]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters)
    examples, losses = _examples(), []
    for step in range(STEPS):
        batch = examples[2 * step : 2 * step + 2]
        inputs = {key: torch.stack([each[key] for each in batch]) for key in batch[0]}
        clock.start()
        loss = model(**inputs).loss
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        clock.stop()
        losses.append(loss.item())
    return losses


def _peft(layers: int, mode: str, backend: str, clock: Clock, dropout: float) -> list[float]:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=dropout)
    model = get_peft_model(_llama(layers), config)
    if mode == PER_BLOCK:
        for layer in model.base_model.model.model.layers:
            layer.compile(backend=backend)
        return _loop(model, clock)
    return _loop(torch.compile(model, backend=backend), clock)


Run = Callable[[int, str, str, Clock], list[float]]
ROWS: dict[str, Run] = {
    "Trainer": lambda n, *a: _trainer(_llama(n), *a),
    "Trainer, gradient_checkpointing, attention dropout": lambda n, *a: _trainer(
        _llama(n, attention_dropout=0.1), *a, gradient_checkpointing=True
    ),
    "Trainer, GPT-2 with its dropout": lambda n, *a: _trainer(_gpt2(n), *a),
    "Trainer, GPT-2 with its dropout, gradient_checkpointing": lambda n, *a: _trainer(
        _gpt2(n), *a, gradient_checkpointing=True
    ),
    "Trainer, bf16": lambda n, *a: _trainer(_llama(n), *a, bf16=True),
    "accelerate, mixed_precision bf16": lambda n, *a: _accelerate(_llama(n), *a, mixed_precision="bf16"),
    "peft, LoRA": lambda n, *a: _peft(n, *a, dropout=0.0),
    "peft, LoRA with dropout": lambda n, *a: _peft(n, *a, dropout=0.1),
}


def _warm_up(backend: str) -> None:
    small = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1))
    torch.compile(small, backend=backend)(torch.ones(2, 4)).sum().backward()
    torch._dynamo.reset()
    counters.clear()


def measure(name: str, mode: str, layers: int, backend: str) -> dict[str, Any]:
    """One run of a row in this process."""
    from torch._inductor.utils import fresh_cache

    torch.set_num_threads(1)
    torch._dynamo.config.use_graph_deduplication = mode == FLAG
    clock = Clock()
    with fresh_cache():
        _warm_up(backend)
        torch.manual_seed(0)
        losses = ROWS[name](layers, mode, backend, clock)
    (own, children), *later = clock.steps
    counted = counters["graph_deduplication"]
    return {
        "seconds": own - min(seconds for seconds, _ in later),
        "compilers": children,
        "outlined": [counted["operators_outlined"], counted["operators"]],
        "losses": losses,
    }


def _run(name: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    more = ["--layers", str(options.layers), "--backend", options.backend]
    command = [sys.executable, "-m", "benchmarks.frameworks", name, "--measure", mode, *more]
    own = environment(mode, TORCHINDUCTOR_COMPILE_THREADS="1", HF_HUB_OFFLINE="1")
    ended = subprocess.run(command, text=True, env=own, stdout=subprocess.PIPE, check=True)
    return json.loads(ended.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]


def _line(name: str, turns: dict[str, list[dict[str, Any]]]) -> str:
    seconds = {mode: [turn["seconds"] for turn in turns[mode]] for mode in MODES}
    cells = [f"{min(seconds[mode]):.1f} ({statistics.median(seconds[mode]):.1f})" for mode in MODES]
    compilers = ", ".join(f"{min(turn['compilers'] for turn in turns[mode]):.1f}" for mode in MODES)
    ratios = [f"{min(seconds[FLAG]) / min(seconds[base]):.2f}" for base in (STOCK_FLAT, PER_BLOCK)]
    losses = {mode: turns[mode][0]["losses"] for mode in MODES}
    equal = ", ".join(equality(losses[mode], losses[STOCK_FLAT], rtol=1e-3, atol=1e-8) for mode in (PER_BLOCK, FLAG))
    outlined = "{} of {}".format(*turns[FLAG][0]["outlined"])
    return f"| {' | '.join([name, *cells, *ratios, compilers, outlined, equal])} |"


def main() -> None:
    parser = options_of_rows(__doc__, ROWS, backend="inductor", repeat=3)
    parser.add_argument("--measure", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.rows[0], options.measure, options.layers, options.backend)))
        return
    columns = ["row", *(f"{mode}: CPU" for mode in MODES), "flag / stock flat", "flag / per-block"]
    columns += ["compilers: stock flat, per-block, flag", "outlined", "losses: per-block, flag"]
    said = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    print("\n".join(said))
    for name in options.rows or ROWS:
        turns: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
        for mode in in_turns(list(MODES), options.repeat):
            turns[mode].append(_run(name, mode, options))
        said.append(_line(name, turns))
        print(said[-1], flush=True)
    if options.out is not None:
        file = options.out / f"frameworks_{options.backend}.md"
        file.write_text(f"{conditions()}\n\n" + "\n".join(said) + "\n")


if __name__ == "__main__":
    main()
