"""Compiles a small Llama with regions and prints what the caches said. Run as a program, in a process of its own.

cached_model.py LAYERS flag|mark|flat|reordered infer|train
"""

from __future__ import annotations

import sys
from collections import Counter

import torch
from testing.processes import cache_counts, tell
from torch import nn
from torch._dynamo.regions.outcomes import outcomes
from torch._dynamo.utils import counters


WIDTH, HEADS, LENGTH, VOCABULARY = 32, 4, 8, 64


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x, cos, sin):
        def heads(y):
            return y.view(*y.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)

        def turned(y):
            left, right = y.chunk(2, -1)
            return y * cos + torch.cat((-right, left), -1) * sin

        q, k = turned(heads(self.query(x))), turned(heads(self.key(x)))
        seen = nn.functional.scaled_dot_product_attention(q, k, heads(self.value(x)), is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.before(x), cos, sin)
        return x + self.mlp(self.between(x))


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        half = torch.arange(WIDTH // HEADS // 2)
        angles = torch.arange(LENGTH)[:, None] / 1000.0 ** (2 * half / (WIDTH // HEADS))
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))


def reorder(model: nn.Module) -> None:
    """The same modules under the same names, registered in another order."""
    for module in model.modules():
        if not isinstance(module, nn.ModuleList):
            module._modules = dict(reversed(module._modules.items()))


def build(layers: int, way: str) -> Model:
    torch.manual_seed(layers)
    model = Model(layers)
    if way == "mark":
        for layer in model.layers:
            layer.forward = torch.compiler.nested_compile_region(layer.forward)
    if way == "reordered":
        reorder(model)
    torch._dynamo.config.use_graph_deduplication = way in ("flag", "reordered")
    return model


def gradients(model: nn.Module, logits: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(logits.log_softmax(-1)[..., 3].square().sum(), list(model.parameters())))


def main(layers: int, way: str, train: bool) -> None:
    model = build(layers, way)
    tokens = torch.arange(2 * LENGTH).reshape(2, LENGTH)
    with torch.set_grad_enabled(train):
        expected = model(tokens)
        compiled = torch.compile(model)
        actual = compiled(tokens)
        torch.testing.assert_close(actual, expected)
        if train:
            torch.testing.assert_close(gradients(model, actual), gradients(model, expected))
        # Other values than those that were compiled with.
        torch.testing.assert_close(compiled(tokens.flip(1)), model(tokens.flip(1)))
    calls = Counter(outcome.outcome.name for outcome in outcomes())
    tell(cache=cache_counts(), calls=calls, bodies=counters["region_bodies"])


def run(arguments: list[str]) -> None:
    layers, way, mode = arguments
    main(int(layers), way, mode == "train")


if __name__ == "__main__":
    run(sys.argv[1:])
