"""Generation with a cache of keys and values: blocks that are regions give eager's tokens and logits."""

import pytest
import torch
import torch._dynamo
from testing.cases import some
from testing.models import compiled, flat, kept, same, start
from torch._dynamo.testing import EagerAndRecordGraphs
from torch._dynamo.utils import counters

from benchmarks.zoo import mark_blocks


LAYERS, PROMPT, STEPS = 2, 6, 4
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
FAMILIES = ("llama", "qwen3")
CACHES = ("static", "dynamic")
CASES = [(family, cache) for family in FAMILIES for cache in CACHES]


def _model(family):
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)).eval()


def _cache(kind, model):
    from transformers import DynamicCache, StaticCache

    if kind == "static":
        return StaticCache(config=model.config, max_cache_len=PROMPT + STEPS + 2)
    return DynamicCache(config=model.config)


def _prompt():
    return torch.randint(3, 125, (2, PROMPT), generator=torch.Generator().manual_seed(1))


def _loop(family, kind, backend, marked):
    """Prefill and some greedy steps by hand: logits, tokens and what the cache holds."""
    start()
    model = _model(family)
    if marked:
        assert mark_blocks(family, model) == LAYERS
    forward = compiled(model, backend)
    cache = _cache(kind, model)
    ids, prompt, seen = _prompt(), _prompt(), []
    tokens = ids
    with torch.no_grad(), torch._dynamo.config.patch(graph_deduplication_lint=True):
        for _ in range(STEPS + 1):
            logits = forward(input_ids=tokens, past_key_values=cache, use_cache=True).logits
            tokens = logits[:, -1:].argmax(-1)
            seen += [logits.clone(), tokens]
    assert torch.equal(ids, prompt)
    seen += [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    return seen, counters["stats"]["unique_graphs"]


def _compare_loops(family, kind, backend):
    wanted, _ = _loop(family, kind, None, False)
    _, graphs = _loop(family, kind, "eager", False)
    got, ours = _loop(family, kind, backend, True)
    assert kept() >= 2 * LAYERS and flat() == 0  # prefill and decode
    assert ours <= graphs
    same(got, wanted)


@pytest.mark.parametrize("family, kind", some(CASES, [("llama", "static"), ("qwen3", "dynamic")]))
def test_loop_in_aot_eager_as_in_eager(family, kind):
    _compare_loops(family, kind, "aot_eager")


@pytest.mark.parametrize("family, kind", some(CASES, [("llama", "static")]))
def test_loop_in_inductor_as_in_eager(family, kind):
    _compare_loops(family, kind, "inductor")


def _generate(family, kind, backend, marked):
    start()
    model = _model(family)
    if marked:
        mark_blocks(family, model)
    model.forward = model.forward if backend is None else torch.compile(model.forward, backend=backend)
    with torch._dynamo.config.patch(graph_deduplication_lint=True):
        made = model.generate(
            _prompt(),
            attention_mask=torch.ones(2, PROMPT, dtype=torch.long),
            max_new_tokens=STEPS,
            do_sample=False,
            cache_implementation=kind if kind == "static" else None,
            disable_compile=True,  # what generate would compile by itself is compiled here
            return_dict_in_generate=True,
            output_logits=True,
        )
    return [made.sequences, *made.logits]


def _compare_generated(family, kind, backend):
    wanted = _generate(family, kind, None, False)
    got = _generate(family, kind, backend, True)
    assert kept() >= LAYERS and flat() == 0
    same(got, wanted)


@pytest.mark.parametrize("family, kind", some(CASES, [("qwen3", "static")]))
def test_generate_in_aot_eager_as_in_eager(family, kind):
    _compare_generated(family, kind, "aot_eager")


@pytest.mark.parametrize("family, kind", some(CASES, []))
def test_generate_in_inductor_as_in_eager(family, kind):
    _compare_generated(family, kind, "inductor")


def test_layers_with_a_static_cache_have_one_body():
    """Each layer finds its part of the cache by its number, and writes to it."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    layers = 8
    start()
    torch.manual_seed(0)
    backend = EagerAndRecordGraphs()
    model = Qwen3ForCausalLM(Qwen3Config(**{**SIZES, "num_hidden_layers": layers}, head_dim=8)).eval()
    wanted, cache = [], []
    for run in (model, None):
        if run is None:
            assert mark_blocks("qwen3", model) == layers
            run = torch.compile(model, backend=backend)
        cache.append(_cache("static", model))
        cache[-1].early_initialization(2, 2, 8, torch.float32, "cpu")
        tokens, seen = _prompt(), []
        with torch.no_grad():
            for _ in range(3):
                logits = run(input_ids=tokens, past_key_values=cache[-1], use_cache=True).logits
                tokens = logits[:, -1:].argmax(-1)
                seen.append(logits.clone())
        wanted.append(seen + [(layer.keys.clone(), layer.values.clone()) for layer in cache[-1].layers])
    same(wanted[1], wanted[0])
    # Prefill and decode: two layers are traced (the model itself looks at the first layer's part), six are stamped out.
    assert counters["regions"]["reused"] == 2 * (layers - 2)
    assert counters["regions"]["traced"] == 2 * 2
    # All layers are calls of one body, which writes to the layer's part of the cache.
    for graph in backend.graphs:
        calls = graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
        assert len(calls) == layers and len({call.args[1] for call in calls}) == 1
    assert len(backend.graphs) == 2
