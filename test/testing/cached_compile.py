"""Compiles like blocks, each by itself, and prints what the cache said. Run as a program, in a process of its own.

cached_compile.py BLOCKS [train]
"""

from __future__ import annotations

import sys

import torch
import torch._functorch.config
from testing.processes import cache_counts, tell


class Block(torch.nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x):
        # Which layer it is counts for Dynamo, which compiles each by itself, and not for what the graph does.
        if self.index >= 0:
            return x + self.down(torch.nn.functional.gelu(self.up(x)))
        return x


def main(blocks: int, train: bool) -> None:
    torch.manual_seed(0)
    layers = [Block(index) for index in range(blocks)]
    x = torch.randn(4, 8, requires_grad=train)
    expected = compiled = x
    with torch.set_grad_enabled(train), torch._dynamo.config.patch(recompile_limit=2 * blocks):
        for layer in layers:
            expected = layer(expected)
            compiled = torch.compile(layer, dynamic=False)(compiled)
        torch.testing.assert_close(compiled, expected)
        if train:
            weights = [p for layer in layers for p in layer.parameters()]
            grads = (torch.autograd.grad(y.sin().sum(), [x, *weights]) for y in (expected, compiled))
            torch.testing.assert_close(*grads)
    tell(cache=cache_counts())


def run(arguments: list[str]) -> None:
    torch._functorch.config.force_non_lazy_backward_lowering = "early" in arguments
    main(int(arguments[0]), "train" in arguments)


if __name__ == "__main__":
    run(sys.argv[1:])
