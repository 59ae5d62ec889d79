"""Real architectures, small, whose repeated block is a region: they train and infer as unmarked ones."""

import pytest
from marked import flat, graphs, kept, same, some, train_and_infer
from torch._dynamo.utils import counters
from torch.compiler import nested_compile_region

from benchmarks.zoo import ARCHITECTURES


def _compare(name, backend, dropout=False):
    # Compiled dropout draws other numbers than eager.
    wanted = train_and_infer(name, backend if dropout else None, False, dropout)
    unmarked = graphs(name, dropout)
    got = train_and_infer(name, backend, True, dropout)
    assert kept() >= 4 and flat() == 0  # two blocks, in training and in inference
    assert counters["stats"]["unique_graphs"] <= unmarked
    same(got, wanted)


@pytest.mark.parametrize("name", some(ARCHITECTURES, ["llama", "gpt2", "mixtral", "t5", "whisper", "swin", "flux"]))
def test_aot_eager_as_eager(name):
    _compare(name, "aot_eager")


@pytest.mark.parametrize("name", some(ARCHITECTURES, ["llama", "deberta"]))
def test_inductor_as_eager(name):
    _compare(name, "inductor")


def test_a_mark_on_the_class_is_one_on_each_block(monkeypatch):
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    wanted = train_and_infer("llama", None, False)
    monkeypatch.setattr(LlamaDecoderLayer, "forward", nested_compile_region(LlamaDecoderLayer.forward))
    got = train_and_infer("llama", "aot_eager", False)
    assert kept() == 4 and flat() == 0
    same(got, wanted)


WITH_DROPOUT = ["llama", "gpt2", "bert", "vit", "t5", "whisper", "swin", "deberta"]


@pytest.mark.parametrize("name", some(WITH_DROPOUT, ["bert", "t5"]))
def test_dropout_draws_what_it_draws_unmarked_in_aot_eager(name):
    _compare(name, "aot_eager", dropout=True)


@pytest.mark.parametrize("name", some(WITH_DROPOUT, ["gpt2"]))
def test_dropout_draws_what_it_draws_unmarked_in_inductor(name):
    _compare(name, "inductor", dropout=True)
