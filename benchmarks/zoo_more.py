"""More small models, whose blocks no benchmark marks: plain modules, shared weights, stages, and layers that alternate.

Like ``zoo.py``; ``build(name, layers)`` here knows the architectures of both files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks import zoo
from benchmarks.zoo import BATCH, LENGTH, VOCABULARY, Example


nn = torch.nn


def _random() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _albert(layers: int, dropout: float) -> Example:
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        vocab_size=VOCABULARY,
        embedding_size=16,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return zoo.text(AlbertModel(config))


def _opt(layers: int, dropout: float) -> Example:
    from transformers import OPTConfig, OPTModel

    sizes = {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": layers, "num_attention_heads": 4}
    config = OPTConfig(vocab_size=VOCABULARY, word_embed_proj_dim=32, use_cache=False, dropout=dropout, **sizes)
    return zoo.text(OPTModel(config))


def _gemma2(layers: int, dropout: float) -> Example:
    """Layers with and without a sliding window alternate."""
    from transformers import Gemma2Config, Gemma2Model

    return zoo.decoder(Gemma2Config, Gemma2Model, head_dim=8, sliding_window=8)(layers, dropout)


def _distilbert(layers: int, dropout: float) -> Example:
    from transformers import DistilBertConfig, DistilBertModel

    sizes = {"dim": 32, "hidden_dim": 64, "n_layers": layers, "n_heads": 4, "vocab_size": VOCABULARY}
    return zoo.text(DistilBertModel(DistilBertConfig(dropout=dropout, attention_dropout=dropout, **sizes)))


def _convnext(layers: int, dropout: float) -> Example:
    from transformers import ConvNextConfig, ConvNextModel

    config = ConvNextConfig(image_size=32, hidden_sizes=[8, 16], depths=[layers, layers], num_stages=2)
    return zoo.pixels(ConvNextModel(config), 32)


def _unet(layers: int, dropout: float) -> Example:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=layers,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        dropout=dropout,
    )
    images, step = torch.rand((BATCH, 3, 16, 16), generator=_random()), torch.tensor([3, 5])
    return Example(model, lambda m: m(images, step, return_dict=False)[0], (images, step))


def _dit(layers: int, dropout: float) -> Example:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        num_layers=layers,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
        dropout=dropout,
        norm_num_groups=4,
    )
    images = torch.rand((BATCH, 4, 8, 8), generator=_random())
    step, label = torch.tensor([3, 5]), torch.tensor([1, 2])

    def call(m: Any) -> torch.Tensor:
        return m(images, timestep=step, class_labels=label, return_dict=False)[0]

    return Example(model, call, (images, step, label))


def _encoder(layers: int, dropout: float) -> Example:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True)
    x = torch.rand((BATCH, LENGTH, 32), generator=_random())
    return Example(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), lambda m: m(x), (x,))


class _Cell(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.given, self.kept = nn.Linear(size, 4 * size), nn.Linear(size, 4 * size)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, g, o = (self.given(x) + self.kept(h)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class _Unrolled(nn.Module):
    """An LSTM written out: one cell, called at each step."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.cell = _Cell(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = x.new_zeros(len(x), self.size), x.new_zeros(len(x), self.size)
        for step in x.unbind(1):
            h, c = self.cell(step, h, c)
        return h


# Steps of the LSTM for each layer that is asked for.
STEPS = 50


def _lstm(layers: int, dropout: float) -> Example:
    x = torch.rand((BATCH, STEPS * layers, 8), generator=_random())
    return Example(_Unrolled(8), lambda m: m(x), (x,))


class _Tables(nn.Module):
    """A recommender: many tables that are alike, pairwise products, two stacks of layers."""

    def __init__(self, tables: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(64, 8, mode="sum") for _ in range(tables))
        self.below = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.above = nn.Sequential(nn.Linear(pairs + 8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.below(dense)
        looked_up = [table(sparse[k]) for k, table in enumerate(self.tables)]
        all_of_them = torch.stack([x, *looked_up], 1)
        products = torch.bmm(all_of_them, all_of_them.transpose(1, 2))
        i, j = torch.tril_indices(len(self.tables) + 1, len(self.tables) + 1, -1)
        return self.above(torch.cat([x, products[:, i, j]], 1))


def _dlrm(layers: int, dropout: float) -> Example:
    dense = torch.rand((BATCH, 13), generator=_random())
    sparse = torch.randint(64, (4 * layers, BATCH, 3), generator=_random())
    return Example(_Tables(4 * layers), lambda m: m(dense, sparse), (dense, sparse))


class _Bottleneck(nn.Module):
    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(given, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.skip: nn.Module | None = None
        if stride != 1 or given != out:
            self.skip = nn.Sequential(nn.Conv2d(given, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.bn1(self.conv1(x)).relu()
        h = self.bn2(self.conv2(h)).relu()
        h = self.bn3(self.conv3(h))
        return (h + (x if self.skip is None else self.skip(x))).relu()


# Blocks in each stage of a ResNet-50.
RESNET_50 = (3, 4, 6, 3)


def _resnet50(layers: int, dropout: float) -> Example:
    parts: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    given = 8
    for stage, blocks in enumerate(RESNET_50):
        width = 4 << stage
        for k in range(blocks):
            parts.append(_Bottleneck(given, width, 2 if k == 0 and stage else 1))
            given = 4 * width
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, 10))
    images = torch.rand((BATCH, 3, 32, 32), generator=_random())
    return Example(model, lambda m: m(images), (images,))


def _funnel(layers: int, dropout: float) -> Example:
    """No two parts are alike: each has another width and is made of other operators."""
    kinds: list[Callable[[], nn.Module]] = [nn.GELU, nn.Tanh, nn.SiLU, nn.Sigmoid]
    parts: list[nn.Module] = []
    for k in range(2 * layers):
        given, made = 8 + 4 * k, 12 + 4 * k
        norm = nn.LayerNorm(made) if k % 3 else nn.GroupNorm(2, made)
        parts += [nn.Linear(given, made, bias=bool(k % 2)), kinds[k % len(kinds)](), norm, nn.Dropout(dropout)]
    x = torch.rand((BATCH, 8), generator=_random())
    model = nn.Sequential(*parts)
    return Example(model, lambda m: m(x), (x,))


MORE: dict[str, Callable[[int, float], Example]] = {
    "albert": _albert,
    "opt": _opt,
    "gemma2": _gemma2,
    "distilbert": _distilbert,
    "convnext": _convnext,
    "unet": _unet,
    "dit": _dit,
    "encoder": _encoder,
    "lstm": _lstm,
    "dlrm": _dlrm,
    "resnet50": _resnet50,
    "funnel": _funnel,
}
ALL = {**zoo.ARCHITECTURES, **MORE}


def build(name: str, layers: int = 4, dropout: bool = False) -> Example:
    """The example called ``name``, of ``zoo.py`` or of this file, in training mode; see ``zoo.build``."""
    return zoo.make(ALL[name], layers, dropout)
