"""Rows of benchmarks/stack.py whose sizes move."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.stack_rows import BATCH, ROWS, Decoder, Made, _called, _ids, _llama, row


__all__ = ["ROWS"]


def _dynamic(tensor: torch.Tensor, *dimensions: int) -> torch.Tensor:
    """Marks sizes of an input as symbols."""
    for dimension in dimensions:
        torch._dynamo.mark_dynamic(tensor, dimension)
    return tensor


@row("dynamic batch and length")
def _dynamic_decoder(layers: int) -> Made:
    (ids,) = _ids()
    return Decoder(layers, _called), (_dynamic(ids, 0, 1),)


class _Convolution(torch.nn.Module):
    """A residual block of a convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (torch.nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = torch.nn.BatchNorm2d(16), torch.nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(self.one(x)).relu()
        return (x + self.norm2(self.two(h))).relu()  # type: ignore[no-any-return]


@row("convolutions with BatchNorm, dynamic batch and image")
def _dynamic_convolutions(layers: int) -> Made:
    image = torch.randn(BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    first = torch.nn.Conv2d(3, 16, 3, padding=1)
    return torch.nn.Sequential(first, *(_Convolution() for _ in range(layers))), (_dynamic(image, 0, 2, 3),)


class _Decoding(torch.nn.Module):
    """A step of decoding: one token, and a cache that grows by it."""

    def __init__(self, layers: int) -> None:
        from transformers import DynamicCache

        super().__init__()
        self.model: Any = _llama(layers).model.eval()
        self.cache: Any = DynamicCache(config=self.model.config)
        with torch.no_grad():
            self.model(torch.randint(128, (1, 8)), past_key_values=self.cache, use_cache=True)
        for layer in self.cache.layers:
            _dynamic(layer.keys, 2), _dynamic(layer.values, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.model(ids, past_key_values=self.cache, use_cache=True).last_hidden_state  # type: ignore[no-any-return]


@row("a step of decoding with DynamicCache, no gradient")
def _decoding(layers: int) -> Made:
    return _Decoding(layers), (torch.tensor([[1]]),)
