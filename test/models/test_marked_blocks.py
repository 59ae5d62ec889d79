"""Real architectures, small, whose repeated block is a region: they train and infer as unmarked ones."""

import pytest
import torch
import torch._dynamo
from testing.cases import some
from testing.models import compiled, flat, graphs, kept, same, start, state, train_and_infer
from torch._dynamo.utils import counters
from torch.compiler import nested_compile_region

from benchmarks.marked_blocks import reported
from benchmarks.zoo import ARCHITECTURES, build, mark_blocks


def _compare(name, backend, dropout=False):
    # Compiled dropout draws other numbers than eager.
    wanted = train_and_infer(name, backend if dropout else None, False, dropout)
    unmarked = graphs(name, dropout)
    got = train_and_infer(name, backend, True, dropout)
    assert kept() >= 4 and flat() == 0  # two blocks, in training and in inference
    assert counters["stats"]["unique_graphs"] <= unmarked
    same(got, wanted)


@pytest.mark.parametrize("name", some(ARCHITECTURES, ["llama", "t5"]))
def test_aot_eager_as_eager(name):
    _compare(name, "aot_eager")


@pytest.mark.parametrize("name", some(ARCHITECTURES, ["llama"]))
def test_inductor_as_eager(name):
    _compare(name, "inductor")


def test_a_mark_on_the_class_is_one_on_each_block(monkeypatch):
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    wanted = train_and_infer("llama", None, False)
    monkeypatch.setattr(LlamaDecoderLayer, "forward", nested_compile_region(LlamaDecoderLayer.forward))
    got = train_and_infer("llama", "aot_eager", False)
    assert kept() == 4 and flat() == 0
    same(got, wanted)


def _lengths(name, backend):
    """Training on sequences of three lengths; what a size is made of, as in GPT-2's x.size()[:-1] + (n,)."""
    start()
    model = build(name, 2).model
    if backend is not None:
        mark_blocks(name, model)
    called = compiled(model, backend)
    seen = []
    for length in (8, 12, 16):
        ids = torch.randint(3, 125, (2, length), generator=torch.Generator().manual_seed(length))
        torch._dynamo.mark_dynamic(ids, 1)
        model.zero_grad(set_to_none=True)
        out = called(input_ids=ids).last_hidden_state
        out.pow(2).mean().backward()
        seen += [out.detach().clone(), state(model)]
    return seen


@pytest.mark.parametrize(
    "name, backend",
    some([(n, b) for n in ("gpt2", "llama") for b in ("aot_eager", "inductor")], [("gpt2", "aot_eager")]),
)
def test_lengths_that_vary_share_a_body(name, backend):
    wanted = _lengths(name, None)
    got = _lengths(name, backend)
    assert counters["stats"]["unique_graphs"] == 1
    assert kept() == 2 and flat() == 0
    same(got, wanted)


def test_sizes_made_of_sizes_are_in_the_body():
    example = build("gpt2", 3)
    mark_blocks("gpt2", example.model)
    ids = example.inputs[0].clone()
    torch._dynamo.mark_dynamic(ids, 1)
    with reported() as report:
        torch.compile(example.model, backend=report.backend())(input_ids=ids)
    assert (report.bodies, report.calls, sum(report.left.values())) == (1, 3, 0)


WITH_DROPOUT = ["llama", "gpt2", "bert", "vit", "t5", "whisper", "swin", "deberta"]


@pytest.mark.parametrize("name", some(WITH_DROPOUT, []))
def test_dropout_draws_what_it_draws_unmarked_in_aot_eager(name):
    _compare(name, "aot_eager", dropout=True)


@pytest.mark.parametrize("name", some(WITH_DROPOUT, ["gpt2"]))
def test_dropout_draws_what_it_draws_unmarked_in_inductor(name):
    _compare(name, "inductor", dropout=True)
