"""Activation checkpointing around regions and inside them: they train as unmarked ones do in eager."""

import functools

import pytest
import torch
import torch._dynamo
from testing.cases import some
from testing.models import compiled, same, start, train
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo import blocks, build, mark_blocks


LAYERS = 2
BACKENDS = ("aot_eager", "inductor")
region = torch.compiler.nested_compile_region


def _enabled(name, model, mark):
    """The model's own way: a checkpoint in the block's __call__, around its forward, the region."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if mark:
        mark_blocks(name, model)


def _around(name, model, mark):
    for block in blocks(name, model):
        forward = region(block.forward) if mark else block.forward
        block.forward = functools.partial(checkpoint, forward, use_reentrant=False)


def _whole_inside(name, model, mark):
    for block in blocks(name, model):
        inner = functools.partial(checkpoint, block.forward, use_reentrant=False)
        block.forward = region(inner) if mark else inner


def _mlp_inside(name, model, mark):
    for block in blocks(name, model):
        block.mlp.forward = functools.partial(checkpoint, block.mlp.forward, use_reentrant=False)
    if mark:
        mark_blocks(name, model)


PLACES = {"enabled": _enabled, "around": _around, "whole_inside": _whole_inside, "mlp_inside": _mlp_inside}


def _train(name, place, backend, mark, dropout):
    start()
    example = build(name, LAYERS, dropout)
    PLACES[place](name, example.model, mark)
    with torch._dynamo.config.patch(graph_deduplication_lint=True):
        seen = train(example, compiled(example.model, backend))
    return seen, counters["stats"]["unique_graphs"]


def _compare(name, place, backend, dropout=False):
    wanted, _ = _train(name, place, backend if dropout else None, False, dropout)
    _, graphs = _train(name, place, "aot_eager", False, dropout)
    got, ours = _train(name, place, backend, True, dropout)
    assert sum(counters["regions"][outcome] for outcome in ("traced", "reused", "inlined")) >= LAYERS
    assert ours <= graphs
    same(got, wanted)


CASES = [(name, place) for name in ("llama", "gpt2") for place in PLACES]


@pytest.mark.parametrize("name, place", some(CASES, [("llama", "enabled"), ("llama", "mlp_inside")]))
def test_aot_eager_as_eager(name, place):
    _compare(name, place, "aot_eager")


@pytest.mark.parametrize("name, place", some(CASES, [("llama", "mlp_inside")]))
def test_inductor_as_eager(name, place):
    _compare(name, place, "inductor")


@pytest.mark.parametrize("place", some(PLACES, ["mlp_inside"]))
@pytest.mark.parametrize("backend", BACKENDS[:1])
def test_dropout_draws_what_it_draws_unmarked(backend, place):
    _compare("gpt2", place, backend, dropout=True)
