"""Models of transformers that collect what their layers compute: by hooks, which look into a collector of the frame's."""

import pytest
import torch
import torch._dynamo
import transformers
from torch._dynamo.utils import counters


LAYERS = 6
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": LAYERS,
    "vocab_size": 32,
}
IDS = torch.arange(12).view(2, 6) % 7


def _llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, attn_implementation="eager"))


def _bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, attn_implementation="eager"))


def _mixtral():
    config = transformers.MixtralConfig(
        **SIZES, num_key_value_heads=2, num_local_experts=4, attn_implementation="eager"
    )
    return transformers.MixtralForCausalLM(config)


COLLECTED = {
    "hidden states of Llama": (_llama, {"output_hidden_states": True, "use_cache": False}),
    "attentions of Llama": (_llama, {"output_attentions": True, "use_cache": False}),
    "both of BERT": (_bert, {"output_hidden_states": True, "output_attentions": True}),
    "router logits of Mixtral": (_mixtral, {"output_router_logits": True, "use_cache": False}),
}


def _step(program, model, options):
    model.zero_grad()
    torch.manual_seed(0)
    out = program(input_ids=IDS, labels=IDS, **options)
    out.loss.backward()
    collected = [getattr(out, name, None) for name in ("hidden_states", "attentions", "router_logits")]
    return out.logits, collected, [parameter.grad.clone() for parameter in model.parameters()]


def _compiled(model, options, on):
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(use_graph_deduplication=on):
        return _step(torch.compile(model, backend="aot_eager", fullgraph=True), model, options)


@pytest.mark.parametrize("what", COLLECTED)
def test_layers_whose_outputs_are_collected_are_reused(what):
    make, options = COLLECTED[what]
    torch.manual_seed(0)
    model = make().eval()
    eager = _step(model, model, options)  # transformers installs its hooks now, which would break the graph
    flat = _compiled(model, options, False)
    flag = _compiled(model, options, True)
    assert counters["regions"]["reused"] >= LAYERS - 2
    torch.testing.assert_close(flag[:2], flat[:2], rtol=0, atol=0)
    torch.testing.assert_close(flag, flat, rtol=1e-5, atol=1e-6)  # 2.15 sums some gradients in another order
    torch.testing.assert_close(flag, eager, rtol=1e-4, atol=1e-5)
    assert any(each is not None and len(each) >= LAYERS for each in flag[1])
