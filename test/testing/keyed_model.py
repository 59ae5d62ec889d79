"""A model whose blocks are regions by flag or mark, with modules in one order or the other, and its key."""

from __future__ import annotations

import torch
from testing.cache_keys import keys_of


class Block(torch.nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.query = torch.nn.Linear(width, width)
        self.key = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.norm(x)
        x = x + torch.softmax(self.query(h) @ self.key(h).transpose(-1, -2), -1) @ h
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Reordered(Block):
    def __init__(self) -> None:
        super().__init__()
        self._modules = dict(reversed(self._modules.items()))  # type: ignore[assignment]


class Model(torch.nn.Module):
    def __init__(self, block: type[Block] = Block, marked: bool = False, depth: int = 4) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(block() for _ in range(depth))
        if marked:
            for layer in self.layers:
                layer.forward = torch.compiler.nested_compile_region(layer.forward)  # type: ignore[method-assign]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def key(flag: bool = False, **options) -> list[str]:
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        return keys_of(Model(**options), torch.ones(2, 5, 16))
