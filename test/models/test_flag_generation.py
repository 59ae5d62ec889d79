"""``generate()`` with a growing cache under the flag: flat's tokens, logits and number of compiles."""

import pytest
import torch
import torch._dynamo
import transformers
from testing.cases import some
from testing.models import same, start
from torch._dynamo.utils import counters
from transformers import GenerationMixin


LAYERS, STEPS, VOCABULARY = 3, 5, 64
DECODER = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
DECODER |= {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCABULARY}
ENDLESS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
PAIR = {"encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
PAIR |= {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": VOCABULARY, "num_mel_bins": 4}


def _llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER, **ENDLESS))


def _qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**DECODER, **ENDLESS))


def _gemma3():
    config = transformers.Gemma3TextConfig(**DECODER, **ENDLESS, sliding_window=6, query_pre_attn_scalar=8)
    return transformers.Gemma3ForCausalLM(config)


def _t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": LAYERS, "num_heads": 2, "vocab_size": VOCABULARY}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **ENDLESS, decoder_start_token_id=0))


def _whisper():
    positions = {"max_source_positions": 8, "max_target_positions": 16, "decoder_start_token_id": 3}
    config = transformers.WhisperConfig(
        **PAIR, **ENDLESS, **positions, suppress_tokens=None, begin_suppress_tokens=None
    )
    return transformers.WhisperForConditionalGeneration(config)


def _generated(make, backend, flag):
    """Tokens and logits, and how many frames were compiled."""
    start()
    torch.manual_seed(0)
    model = make().eval()
    model.generation_config.eos_token_id = None
    if backend is not None:
        model.forward = torch.compile(model.forward, backend=backend)
    numbers = torch.Generator().manual_seed(1)
    given = torch.randint(4, VOCABULARY, (1, 5), generator=numbers)
    if make is _whisper:
        given = torch.rand((1, 4, 16), generator=numbers)
    with torch._dynamo.config.patch(use_graph_deduplication=flag, graph_deduplication_lint=True):
        # Whisper's own generate() cuts sound into pieces.
        made = GenerationMixin.generate(
            model, given, max_new_tokens=STEPS, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    return [made.sequences, *made.logits], counters["frames"]["ok"]


@pytest.mark.parametrize("make", some([_llama, _qwen3, _gemma3, _t5, _whisper], [_llama, _whisper]))
def test_generate_under_the_flag_is_flats(make):
    wanted, _ = _generated(make, None, False)
    _, frames = _generated(make, "eager", False)
    got, ours = _generated(make, "eager", True)
    same(got, wanted)
    assert ours == frames
    # In the prefill the first layer's part of the cache is known; then two layers are traced. From the third step on the
    # length of the cache is a symbol, and so is the number of tokens that a sliding window has seen.
    # Whisper's layers write to a dict of the cache in each step, which is a side effect that is not repeated.
    assert counters["regions"]["reused"] >= LAYERS - 2 or make is _whisper
