"""The rows of benchmarks/stack.py: a decoder with one feature each.

A row is a function of the number of layers that returns a module and its inputs. To add one, write it here and put
``@row("name")`` on it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


os.environ.setdefault("HF_HUB_OFFLINE", "1")

HIDDEN, HEADS, LENGTH, BATCH = 64, 4, 32, 2
Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]
Row = Callable[[int], Made]
ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    """Adds a row to the table."""

    def add(make: Row) -> Row:
        ROWS[name] = make
        return make

    return add


class Layer(torch.nn.Module):
    """A layer of a decoder: attention and a gated MLP, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.RMSNorm(HIDDEN), torch.nn.RMSNorm(HIDDEN)
        self.qkv, self.out = torch.nn.Linear(HIDDEN, 3 * HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN)
        self.gate, self.up = torch.nn.Linear(HIDDEN, 2 * HIDDEN), torch.nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = torch.nn.Linear(2 * HIDDEN, HIDDEN)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(torch.nn.Module):
    """Layers, called by ``call(layer, x)``, between an embedding and a norm."""

    def __init__(self, layers: int, call: Callable[..., torch.Tensor], layer: type[torch.nn.Module] = Layer) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(128, HIDDEN)
        self.layers = torch.nn.ModuleList(layer() for _ in range(layers))
        self.norm, self.call = torch.nn.RMSNorm(HIDDEN), call

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = self.call(layer, x)
        return self.norm(x)


def _ids() -> tuple[torch.Tensor, ...]:
    return (torch.randint(128, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1)),)


@row("plain")
def _plain(layers: int) -> Made:
    return Decoder(layers, lambda layer, x: layer(x)), _ids()


@row("checkpoint")
def _checkpoint(layers: int) -> Made:
    return Decoder(layers, lambda layer, x: checkpoint(layer, x, use_reentrant=False)), _ids()


@row("checkpoint, reentrant")
def _reentrant(layers: int) -> Made:
    return Decoder(layers, lambda layer, x: checkpoint(layer, x, use_reentrant=True)), _ids()


_SAVED = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _SAVED else CheckpointPolicy.PREFER_RECOMPUTE


@row("checkpoint, selective")
def _selective(layers: int) -> Made:
    contexts = functools.partial(create_selective_checkpoint_contexts, _policy)
    return Decoder(layers, lambda layer, x: checkpoint(layer, x, use_reentrant=False, context_fn=contexts)), _ids()


class _LastState(torch.nn.Module):
    """A model of transformers, called for its last hidden state."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids).last_hidden_state  # type: ignore[no-any-return]


def _llama(layers: int) -> _LastState:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_hidden_layers": layers}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    return _LastState(LlamaModel(LlamaConfig(**sizes, **heads, vocab_size=128, use_cache=False)))


@row("Llama")
def _plain_llama(layers: int) -> Made:
    return _llama(layers), _ids()


@row("Llama, gradient_checkpointing_enable")
def _checkpointed_llama(layers: int) -> Made:
    module = _llama(layers)
    enable = getattr(module.model, "activation_checkpointing_enable", module.model.gradient_checkpointing_enable)
    enable()
    return module, _ids()
