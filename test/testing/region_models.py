"""A stack of marked blocks, compiled by AOTAutograd, and the graphs that its compilers get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.second(self.first(x).relu() * mask)
        return x + y, y.sigmoid()


class Stack(torch.nn.Module):
    """Blocks, with operators around them that may be fused, recomputed or saved."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(layers))
        self.scale = torch.nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x, gates = (x * self.scale).sin(), []
        for block in self.blocks:
            x, gate = block(x, mask)
            gates.append(gate.cos() * self.scale)
        return (torch.stack(gates).exp().sum(0) * x.tanh()).sum()


def mark(model: Stack) -> Stack:
    for block in model.blocks:
        block.forward = torch.compiler.nested_compile_region(block.forward)
    return model


def train(model: Stack, compiler: Callable[..., Any] | None = None, **options: Any) -> list[Any]:
    """A training step; what it returns and the gradients. ``compiler`` gets the forward and the backward graph."""
    x, mask = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)), torch.ones(4, 16)
    run: Any = model
    if compiler is not None:
        torch._dynamo.reset()
        backend = aot_autograd(
            fw_compiler=compiler, bw_compiler=compiler, partition_fn=min_cut_rematerialization_partition
        )
        run = torch.compile(model, backend=backend, fullgraph=True, **options)
    model.zero_grad()
    result = run(x, mask)
    result.backward()
    return [result.detach(), [p.grad for p in model.parameters()]]


class Graphs:
    """A compiler that runs graphs as they are, and keeps their words."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, gm: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        from functorch.compile import make_boxed_func

        self.words.append(gm.print_readable(print_output=False, include_stride=True, include_device=True))
        return make_boxed_func(gm.forward)  # type: ignore[no-any-return]
