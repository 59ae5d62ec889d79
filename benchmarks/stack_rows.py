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

    def feed(self, h: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(h)) * self.up(h))  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.feed(self.norm2(x))


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


class _Dropout(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.dropout(self.attend(self.norm1(x)), 0.1, self.training)
        return x + F.dropout(self.feed(self.norm2(x)), 0.1, self.training)


class _DropPath(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = (torch.rand(x.shape[0], 1, 1) < 0.9).to(x.dtype) / 0.9
        return x + kept * (self.attend(self.norm1(x)) + self.feed(self.norm2(x)))


class _AutocastInside(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            h = self.attend(self.norm1(x))
        x = x + h.float()
        return x + self.feed(self.norm2(x))


class _Cond(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        h = torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos() * 2, (x,))
        return x + self.feed(self.norm2(h))


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.tanh() * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * (x.tanh() + x * (1 - x.tanh() ** 2))


class _Function(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        return x + _Square.apply(self.feed(self.norm2(x)))  # type: ignore[no-untyped-call]


@torch.library.custom_op("torch_regions_benchmarks::scaled", mutates_args=())
def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 1.5


_scaled.register_fake(torch.empty_like)
_scaled.register_autograd(lambda ctx, grad: grad * 1.5)


class _CustomOperator(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        return x + _scaled(self.feed(self.norm2(x)))


class _Experts(Layer):
    """Each expert is given the tokens that chose it, so that sizes depend on data."""

    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Linear(HIDDEN, 4)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        tokens = self.norm2(x).flatten(0, 1)
        weight, chosen = self.router(tokens).softmax(-1).max(-1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            (of,) = torch.nonzero(chosen == number, as_tuple=True)
            out = out.index_add(0, of, expert(tokens[of]) * weight[of, None])
        return x + out.view_as(x)


class _WeightNorm(Layer):
    def __init__(self) -> None:
        super().__init__()
        torch.nn.utils.parametrizations.weight_norm(self.up)
        torch.nn.utils.parametrizations.weight_norm(self.down)


class _Lora(Layer):
    """The weights are frozen, and those of the adapters are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.a, self.b = torch.nn.Linear(HIDDEN, 4, bias=False), torch.nn.Linear(4, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        x = x + self.attend(h) + self.b(self.a(h))
        return x + self.feed(self.norm2(x))


class _Cached(Layer):
    """Writes its result into a buffer at a fixed position, as a static cache of keys and values does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(BATCH, 2 * LENGTH, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        self.cache[:, LENGTH:] = h
        x = x + self.attend(h) + self.cache.mean(1, keepdim=True)
        return x + self.feed(self.norm2(x))


def _called(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x)  # type: ignore[no-any-return]


def _of(layer: type[torch.nn.Module]) -> Row:
    return lambda layers: (Decoder(layers, _called, layer), _ids())


row("dropout")(_of(_Dropout))
row("drop path")(_of(_DropPath))
row("autocast inside")(_of(_AutocastInside))
row("cond inside")(_of(_Cond))
row("autograd.Function inside")(_of(_Function))
row("custom operator inside")(_of(_CustomOperator))
row("weight_norm")(_of(_WeightNorm))
row("adapters (LoRA)")(_of(_Lora))


class _Around(torch.nn.Module):
    """``module``, called by ``how(module, ids)``."""

    def __init__(self, module: torch.nn.Module, how: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.module, self.how = module, how

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.how(self.module, ids)


def _autocast(cache: bool | None) -> Callable[..., torch.Tensor]:
    def how(module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
            return module(ids)  # type: ignore[no-any-return]

    return how


def _functional(module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    values = {name: p * 1.0 for name, p in module.named_parameters()}
    return torch.func.functional_call(module, values, (ids,))  # type: ignore[no-any-return]


@row("autocast around")
def _autocast_around(layers: int) -> Made:
    return _Around(_plain(layers)[0], _autocast(None)), _ids()


@row("autocast around, casts kept (accelerate)")
def _kept_casts(layers: int) -> Made:
    return _Around(_plain(layers)[0], _autocast(True)), _ids()


@row("autocast around, checkpoint")
def _autocast_checkpoint(layers: int) -> Made:
    return _Around(_checkpoint(layers)[0], _autocast(True)), _ids()


@row("functional_call")
def _functional_call(layers: int) -> Made:
    return _Around(_plain(layers)[0], _functional), _ids()


@row("static cache, no gradient")
def _static_cache(layers: int) -> Made:
    def how(module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return module(ids)  # type: ignore[no-any-return]

    return _Around(Decoder(layers, _called, _Cached), how), _ids()


@row("experts (sizes that depend on data)")
def _mixture(layers: int) -> Made:
    module = Decoder(layers, _called, _Experts)
    module.dynamo_config = {"capture_dynamic_output_shape_ops": True}  # type: ignore[assignment]
    return module, _ids()


@row("graph break in one layer")
def _break(layers: int) -> Made:
    def call(layer: Any, x: torch.Tensor) -> torch.Tensor:
        if layer.breaks:
            torch._dynamo.graph_break()
        return layer(x)  # type: ignore[no-any-return]

    module = Decoder(layers, call)
    for number, layer in enumerate(module.layers):
        layer.breaks = number == layers // 2  # type: ignore[assignment]
    return module, _ids()


@row("tensor parallel (MLP)")
def _tensor_parallel(layers: int) -> Made:
    """One of two ranks; its collectives send nothing."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    mesh = init_device_mesh("cpu", (2,))
    decoder = Decoder(layers, _called)
    for layer in decoder.layers:
        plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, mesh, plan)  # type: ignore[arg-type]
    return decoder, _ids()


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


@row("GPT-2, dropout as configured")
def _gpt2(layers: int) -> Made:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        n_embd=HIDDEN, n_layer=layers, n_head=HEADS, vocab_size=128, n_positions=LENGTH, use_cache=False
    )
    return _LastState(GPT2Model(config)), _ids()
