"""Small programs that go through all of regions: each compiles in a fraction of a second, with a backend that writes no kernels.

``PROGRAMS[name](regions)`` makes a program anew and gives what it computes, flat. With regions, the flag or the mark is on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo


Values = list[torch.Tensor]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale = 0.5

    def forward(self, x: torch.Tensor, masks: dict[str, Any]) -> torch.Tensor:
        self.last = x
        y = torch.nn.functional.gelu(self.linear(x)) * self.scale + x
        if masks["mask"] is not None:
            y = y * masks["mask"]
        return y.tanh()


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        masks = {"mask": torch.ones(4), "unused": 3}
        for block in self.blocks:
            x = block(x, masks)
        return x


def _train(backend: Any, module: torch.nn.Module, inputs: torch.Tensor) -> Values:
    result = torch.compile(module, backend=backend)(inputs)
    result.square().sum().backward()
    return [result.detach(), *(p.grad for p in module.parameters())]


def layers(regions: bool, backend: Any) -> Values:
    """Automatic regions, in training."""
    module, x = Stack(), torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
    with torch._dynamo.config.patch(use_graph_deduplication=regions):
        return _train(backend, module, x)


def search(regions: bool, backend: Any) -> Values:
    """Repeats that are found in the finished graph; a write; a view."""

    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = []
        for _ in range(3):
            x = torch.nn.functional.gelu(x @ w).softmax(-1) + x
            x = x.view(x.shape[0], -1) * 2
            x.mul_(0.5)
            out.append(x.sum())
        return x, *out

    x, w = torch.linspace(-1, 1, 8).reshape(2, 4), torch.linspace(0, 1, 16).reshape(4, 4).requires_grad_()
    with torch._dynamo.config.patch(use_graph_deduplication=regions, graph_deduplication_lint=True):
        results = torch.compile(program, backend=backend)(x, w)
        sum(r.sum() for r in results).backward()
    return [*(r.detach() for r in results), w.grad]


COUNT = 0


def marks(regions: bool, backend: Any) -> Values:
    """Marked functions, one in the other, with an effect, a global, a nested argument and a graph break behind them."""
    global COUNT
    COUNT = 0
    mark: Callable[[Any], Any] = torch.compiler.nested_compile_region if regions else lambda function: function

    @mark
    def inner(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).sigmoid() * 2

    @mark
    def outer(x: torch.Tensor, options: dict[str, Any], seen: list[torch.Tensor]) -> torch.Tensor:
        global COUNT
        COUNT += 1
        y = inner(x, options["weights"][0]) + options["scale"]
        y = inner(y, options["weights"][0]).sin()
        seen.append(y)
        return y + x.cos()

    weights = [torch.linspace(0, 1, 16).reshape(4, 4).requires_grad_()]

    def program(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        seen: list[torch.Tensor] = []
        for _ in range(2):
            x = outer(x, {"weights": weights, "scale": 0.25}, seen)
        torch._dynamo.graph_break()
        return outer(x, {"weights": weights, "scale": 1}, seen), seen

    result, seen = torch.compile(program, backend=backend)(torch.linspace(-1, 1, 8).reshape(2, 4))
    result.sum().backward()
    return [result.detach(), *(s.detach() for s in seen), weights[0].grad, torch.tensor(COUNT)]


PROGRAMS = {"layers": layers, "search": search, "marks": marks}
