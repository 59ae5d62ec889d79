"""Small programs whose code for CUDA has something that code for the CPU has not; each flat and with a marked region.

usage: python test/testing/cuda_programs.py      prints, as JSON, what each program's step did
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


sys.path[:0] = [str(Path(__file__).parent)]

import cuda_device  # noqa: E402


if __name__ == "__main__":
    cuda_device.stand_in()

import torch  # noqa: E402


class Program(torch.nn.Module):
    """Three calls of ``block`` on what ``operands`` makes of the input, with a weight of each call's own."""

    def __init__(self, block: Callable[..., Any], operands: Callable[..., Any], width: int) -> None:
        super().__init__()
        self.block, self.operands = block, operands
        self.weights = torch.nn.ParameterList(torch.ones(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.block(operand, weight) for operand, weight in zip(self.operands(x), self.weights)]


def _waves(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x.sin() @ weight + x).cos().exp() + 1


def _written(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.sin() @ weight


def _flash(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    queries = (x @ weight).view(2, 16, 4, 16).transpose(1, 2)
    result = torch.ops.aten._scaled_dot_product_flash_attention(queries, queries, queries, is_causal=True)[0]
    return result.transpose(1, 2).reshape(2, 16, 64) + x


def _dropped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = torch.nn.functional.dropout((x @ weight).relu(), 0.5) + x
    return torch.nn.functional.dropout(x.sin(), 0.1) * torch.rand_like(x)


def _softmax(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    queries = (x @ weight).view(2, 16, 4, 16).transpose(1, 2)
    scores = (queries @ queries.transpose(-2, -1)).div(4.0).softmax(-1)
    return (scores @ queries).transpose(1, 2).reshape(2, 16, 64) + x


def _chain(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * 2, x * 3, x * 4]


def _copied_rows(x: torch.Tensor) -> list[torch.Tensor]:
    """Inductor drops these copies; a row of 63 numbers begins at an address that 16 does not divide."""
    doubled = x * 2
    return [doubled[i].clone() for i in range(3)]


PROGRAMS: dict[str, tuple[Any, Any, tuple[int, ...], torch.dtype]] = {
    "copied rows": (_waves, _copied_rows, (3, 7, 9), torch.float32),
    "copied rows in bfloat16": (_waves, _copied_rows, (3, 7, 9), torch.bfloat16),
    "written rows": (_written, _copied_rows, (3, 7, 9), torch.float32),
    "dropout": (_dropped, _chain, (2, 16, 64), torch.float32),
    "flash attention": (_flash, _chain, (2, 16, 64), torch.bfloat16),
    "attention pattern": (_softmax, _chain, (2, 16, 64), torch.float32),
}


def _step(name: str, marked: bool) -> dict[str, Any]:
    import cuda_codegen
    from torch._dynamo.utils import counters
    from torch._subclasses.fake_tensor import FakeTensorMode

    block, operands, shape, dtype = PROGRAMS[name]
    mode = FakeTensorMode()
    model = Program(torch.compiler.nested_compile_region(block) if marked else block, operands, shape[-1])
    cuda_codegen.on_cuda(model, mode, dtype)
    x = cuda_codegen.on_cuda(torch.ones(shape), mode, dtype)
    counters.clear()
    record = cuda_codegen.run_step(model, lambda m: m(x), training=False, flag=False, mode=mode)
    return {
        "bodies": sum(map(cuda_codegen.bodies, record.wrappers)),
        "launches": sum(record.launches.values()),
        "operators": dict(record.operators),
        "copies": record.copies,
        "patterns": counters["inductor"]["fuse_attention"],
        "wrong": record.wrong,
    }


def main() -> None:
    found = {}
    with contextlib.redirect_stdout(sys.stderr):
        for name in PROGRAMS:
            found[name] = {"flat": _step(name, False), "marked": _step(name, True)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
