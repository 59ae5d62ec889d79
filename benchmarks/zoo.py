"""Small configurations of real architectures, with random weights, for tests and benchmarks.

``build(name, layers)`` gives an ``Example``: a module in training mode and a function that calls
it on fixed inputs and returns its tensors.  Dropout is on where the architecture's default has
it and ``dropout=True`` was asked for; otherwise it is 0, so that backends can be compared.
``mark_blocks(name, model)`` makes a region of each of its repeated blocks.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import torch


os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCABULARY = 128
BATCH, LENGTH = 2, 16


@dataclasses.dataclass
class Example:
    """A model and how to call it: ``call(model)`` returns a tensor to train on."""

    model: torch.nn.Module
    call: Callable[[Any], torch.Tensor]
    inputs: tuple[torch.Tensor, ...]


def _ids() -> torch.Tensor:
    return torch.randint(3, VOCABULARY - 3, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


def text(model: torch.nn.Module) -> Example:
    ids = _ids()
    return Example(model, lambda m: m(input_ids=ids).last_hidden_state, (ids,))


def pixels(model: torch.nn.Module, size: int) -> Example:
    pixels = torch.rand((BATCH, 3, size, size), generator=torch.Generator().manual_seed(1))
    return Example(model, lambda m: m(pixel_values=pixels).last_hidden_state, (pixels,))


def decoder(config: type, model: type, **more: Any) -> Callable[[int, float], Example]:
    def build(layers: int, dropout: float) -> Example:
        return text(
            model(
                config(
                    hidden_size=32,
                    intermediate_size=64,
                    num_hidden_layers=layers,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    vocab_size=VOCABULARY,
                    use_cache=False,
                    attention_dropout=dropout,
                    **more,
                )
            )
        )

    return build


def _llama(layers: int, dropout: float) -> Example:
    from transformers import LlamaConfig, LlamaModel

    return decoder(LlamaConfig, LlamaModel)(layers, dropout)


def _qwen3(layers: int, dropout: float) -> Example:
    from transformers import Qwen3Config, Qwen3Model

    return decoder(Qwen3Config, Qwen3Model, head_dim=8)(layers, dropout)


def _mixtral(layers: int, dropout: float) -> Example:
    from transformers import MixtralConfig, MixtralModel

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return decoder(MixtralConfig, MixtralModel, **experts)(layers, dropout)


def _qwen3_moe(layers: int, dropout: float) -> Example:
    from transformers import Qwen3MoeConfig, Qwen3MoeModel

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return decoder(Qwen3MoeConfig, Qwen3MoeModel, head_dim=8, **experts)(layers, dropout)


def _gpt2(layers: int, dropout: float) -> Example:
    from transformers import GPT2Config, GPT2Model

    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    sizes = {"n_embd": 32, "n_layer": layers, "n_head": 4, "vocab_size": VOCABULARY}
    return text(GPT2Model(GPT2Config(use_cache=False, **sizes, **rates)))


def _encoder_sizes(layers: int, dropout: float) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }


def _bert(layers: int, dropout: float) -> Example:
    from transformers import BertConfig, BertModel

    return text(BertModel(BertConfig(vocab_size=VOCABULARY, **_encoder_sizes(layers, dropout))))


def _deberta(layers: int, dropout: float) -> Example:
    from transformers import DebertaV2Config, DebertaV2Model

    config = DebertaV2Config(
        vocab_size=VOCABULARY,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        max_position_embeddings=64,
        pooler_hidden_size=32,
        **_encoder_sizes(layers, dropout),
    )
    return text(DebertaV2Model(config))


def _vit(layers: int, dropout: float) -> Example:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(image_size=16, patch_size=8, **_encoder_sizes(layers, dropout))
    return pixels(ViTModel(config), 16)


def _swin(layers: int, dropout: float) -> Example:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[layers, layers],
        num_heads=[2, 4],
        window_size=4,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        drop_path_rate=dropout,
    )
    return pixels(SwinModel(config), 32)


def _t5(layers: int, dropout: float) -> Example:
    from transformers import T5Config, T5Model

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=4,
        dropout_rate=dropout,
        use_cache=False,
    )
    ids = _ids()
    model = T5Model(config)
    return Example(model, lambda m: m(input_ids=ids, decoder_input_ids=ids).last_hidden_state, (ids,))


def _whisper(layers: int, dropout: float) -> Example:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=16,
        max_target_positions=32,
        dropout=dropout,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    sound = torch.rand((BATCH, 8, 32), generator=torch.Generator().manual_seed(1))
    ids = _ids()
    return Example(
        WhisperModel(config),
        lambda m: m(input_features=sound, decoder_input_ids=ids).last_hidden_state,
        (sound, ids),
    )


def _mamba(layers: int, dropout: float) -> Example:
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        state_size=4,
        num_hidden_layers=layers,
        time_step_rank=4,
        use_cache=False,
    )
    return text(MambaModel(config))


def _flux(layers: int, dropout: float) -> Example:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        in_channels=8,
        num_layers=layers,
        num_single_layers=layers,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(2, 2, 4),
    )
    random = torch.Generator().manual_seed(1)
    inputs = {
        "hidden_states": torch.rand((1, 16, 8), generator=random),
        "encoder_hidden_states": torch.rand((1, 8, 16), generator=random),
        "pooled_projections": torch.rand((1, 16), generator=random),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.arange(48.0).reshape(16, 3) % 4,
        "txt_ids": torch.zeros(8, 3),
    }
    return Example(model, lambda m: m(**inputs, return_dict=False)[0], tuple(inputs.values()))


ARCHITECTURES: dict[str, Callable[[int, float], Example]] = {
    "llama": _llama,
    "gpt2": _gpt2,
    "bert": _bert,
    "vit": _vit,
    "mixtral": _mixtral,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "t5": _t5,
    "whisper": _whisper,
    "mamba": _mamba,
    "swin": _swin,
    "deberta": _deberta,
    "flux": _flux,
}

# The classes of the repeated blocks: what a user would mark.
BLOCKS: dict[str, tuple[str, ...]] = {
    "llama": ("LlamaDecoderLayer",),
    "gpt2": ("GPT2Block",),
    "bert": ("BertLayer",),
    "vit": ("ViTLayer",),
    "mixtral": ("MixtralDecoderLayer",),
    "qwen3": ("Qwen3DecoderLayer",),
    "qwen3_moe": ("Qwen3MoeDecoderLayer",),
    "t5": ("T5Block",),
    "whisper": ("WhisperEncoderLayer", "WhisperDecoderLayer"),
    "mamba": ("MambaBlock",),
    "swin": ("SwinLayer",),
    "deberta": ("DebertaV2Layer",),
    "flux": ("FluxTransformerBlock", "FluxSingleTransformerBlock"),
}


def blocks(name: str, model: torch.nn.Module) -> list[torch.nn.Module]:
    """The repeated blocks of ``model``, an example called ``name`` or a model around one."""
    return [m for m in model.modules() if type(m).__name__ in BLOCKS[name]]


def mark_blocks(name: str, model: torch.nn.Module) -> int:
    """Makes a region of each repeated block of ``model``; returns how many there are."""
    marked = blocks(name, model)
    for block in marked:
        block.forward = torch.compiler.nested_compile_region(block.forward)
    return len(marked)


def build(name: str, layers: int = 4, dropout: bool = False) -> Example:
    """The example called ``name`` with ``layers`` blocks (a stage, where it has stages).

    Weights depend on nothing but the arguments.  Raises KeyError for an unknown name.
    """
    return make(ARCHITECTURES[name], layers, dropout)


def make(architecture: Callable[[int, float], Example], layers: int, dropout: bool) -> Example:
    """An example of ``architecture``, in training mode."""
    torch.manual_seed(0)
    example = architecture(layers, 0.1 if dropout else 0.0)
    example.model.train()
    return example
