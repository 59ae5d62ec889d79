"""An encoder-decoder that is given what its encoder returned: an ordered dict by class, an object by its attributes."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)


TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
SIZES = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
SIZES |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 32, "dropout": 0.0}


def t5():
    sizes = {"d_kv": 4, "d_ff": 16, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    config = T5Config(vocab_size=32, d_model=16, decoder_start_token_id=0, **sizes)
    model = T5ForConditionalGeneration(config).eval()
    return model, [*model.encoder.block, *model.decoder.block], torch.tensor([[3, 4, 5]])


def bart():
    model = BartForConditionalGeneration(BartConfig(**SIZES, **TOKENS, max_position_embeddings=16)).eval()
    return model, [*model.model.encoder.layers, *model.model.decoder.layers], torch.tensor([[3, 4, 5]])


def whisper():
    positions = {"max_source_positions": 8, "max_target_positions": 16, "num_mel_bins": 4}
    model = WhisperForConditionalGeneration(WhisperConfig(**SIZES, **TOKENS, **positions)).eval()
    return model, [*model.model.encoder.layers, *model.model.decoder.layers], torch.randn(1, 4, 16)


@pytest.mark.parametrize("way", ["neither", "flag", "mark"])
@pytest.mark.parametrize("make", [t5, bart, whisper])
def test_dict_by_class_whose_values_are_read_as_attributes(make, way):
    """Its keys' order is guarded under a source at which the value is not the one at hand when the guard is made."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, blocks, given = make()
    ids = torch.tensor([[0, 6]])
    with torch.no_grad(), torch._dynamo.config.patch(use_graph_deduplication=way == "flag"):
        if way == "mark":
            for block in blocks:
                block.forward = torch.compiler.nested_compile_region(block.forward)
        outputs = model.get_encoder()(given)
        expected = model(encoder_outputs=outputs, decoder_input_ids=ids).logits
        compiled = torch.compile(model, backend="eager")
        torch.testing.assert_close(compiled(encoder_outputs=outputs, decoder_input_ids=ids).logits, expected)
        # Another order of keys is another program.
        other = type(outputs)(last_hidden_state=outputs.last_hidden_state * 2)
        expected = model(encoder_outputs=other, decoder_input_ids=ids).logits
        torch.testing.assert_close(compiled(encoder_outputs=other, decoder_input_ids=ids).logits, expected)
