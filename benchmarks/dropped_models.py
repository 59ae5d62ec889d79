"""What is left of models that were compiled and dropped: themselves, their parameters, what regions keep of them.

    python -m benchmarks.dropped_models [--compiles 2000] [--modes flag mark "overlay flat"] [--reset] [--every 500]

Small models, backend eager; each is run and dropped. Counted after ``gc.collect()``: by weak references, and
among all objects that the collector knows. Overlay flat has no regions: what it leaves is stock's part.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch._dynamo
from torch._dynamo import config
from torch._dynamo.regions.facts import Body, CompileFacts
from torch._dynamo.regions.outcomes import CallOutcome, Difference
from torch._guards import InvokeSubgraphReuseCondition, InvokeSubgraphReuseEntry

from benchmarks.modes import FLAG, MARK, MODES


# Records that reports are made of.
_OF_REPORTS = (Body, CallOutcome, CompileFacts, Difference)


@dataclass
class Left:
    """What is there after a number of compiles."""

    compiles: int
    models: int
    parameters: int
    regions: int  # objects of regions' classes
    objects: int
    megabytes: float

    def __str__(self) -> str:
        return (
            f"{self.compiles:6d} compiles: {self.models} models, {self.parameters} parameters, {self.regions} of"
            f" regions' objects alive; {self.objects} objects, {self.megabytes:.0f} MB"
        )


class _Block(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.linear(x).relu()) + x * self.number


class _MarkedBlock(_Block):
    forward = torch.compiler.nested_compile_region(_Block.forward)


def _model(mode: str, number: int) -> torch.nn.Module:
    return torch.nn.Sequential(*((_MarkedBlock if mode == MARK else _Block)(number) for _ in range(4)))


def _is_of_regions(cls: type) -> bool:
    """Whether regions keep objects of ``cls``.

    The report's own lists are bounded (``MAX_OUTCOMES_KEPT``, ``MAX_COMPILES_KEPT``).
    """
    module = cls.__dict__.get("__module__")
    ours = isinstance(module, str) and ".regions." in module and cls not in _OF_REPORTS
    return ours or issubclass(cls, (InvokeSubgraphReuseEntry, InvokeSubgraphReuseCondition))


def _megabytes() -> float:
    with contextlib.suppress(OSError), open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * 4096 / 1e6
    return float("nan")


def run(mode: str, compiles: int, reset: bool, every: int) -> Iterator[Left]:
    """Compiles ``compiles`` models one after another, and says after each ``every`` of them what is left."""
    models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
    parameters: list[weakref.ref[torch.nn.Parameter]] = []
    limits = {"recompile_limit": 10**6, "accumulated_recompile_limit": 10**6}
    x = torch.randn(2, 4)
    with config.patch(use_graph_deduplication=mode == FLAG, **limits):
        for done in range(1, compiles + 1):
            model = _model(mode, done)  # no other was compiled for its number
            models.add(model)
            parameters += [weakref.ref(parameter) for parameter in model.parameters()]
            torch.compile(model, backend="eager")(x)
            del model
            if reset:
                torch._dynamo.reset()
            if done % every == 0:
                gc.collect()
                parameters = [each for each in parameters if each() is not None]
                objects = gc.get_objects()
                regions = sum(_is_of_regions(type(each)) for each in objects)
                yield Left(done, len(models), len(parameters), regions, len(objects), _megabytes())
                del objects


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--compiles", type=int, default=2000)
    parser.add_argument("--modes", nargs="+", default=MODES[1:], choices=MODES[1:])
    parser.add_argument("--reset", action="store_true")
    parser.add_argument("--every", type=int, default=500)
    options = parser.parse_args()
    if len(options.modes) > 1:  # a process for each
        for mode in options.modes:
            arguments = ["--compiles", str(options.compiles), "--every", str(options.every), "--modes", mode]
            command = [sys.executable, "-m", "benchmarks.dropped_models", *arguments]
            subprocess.run([*command, *(["--reset"] if options.reset else [])], check=True)
        return
    (mode,) = options.modes
    print(f"{mode}, {'with' if options.reset else 'without'} torch._dynamo.reset()")
    for left in run(mode, options.compiles, options.reset, options.every):
        print(left, flush=True)


if __name__ == "__main__":
    main()
