"""A real architecture has one cache key, whether its regions come from the flag, from marks, or from both."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from testing.cases import some
from torch._functorch.aot_autograd import autograd_cache_key

from benchmarks import zoo


def keys(name: str, flag: bool, mark: bool, train: bool) -> list[str]:
    example = zoo.build(name, 3)
    example.model.train(train)
    if mark:
        assert zoo.mark_blocks(name, example.model)
    found: list[str] = []

    def backend(gm, inputs):
        found.append(autograd_cache_key(gm, inputs, False, {}, None)[0])
        return gm.forward

    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=flag), torch.set_grad_enabled(train):
        example.call(torch.compile(example.model, backend=backend))
    return found


CASES = [(name, train) for name in ("llama", "whisper") for train in (False, True)]


@pytest.mark.parametrize("name, train", some(CASES, [("llama", True), ("whisper", False)]))
def test_flag_and_marks_have_one_key(name, train):
    found = keys(name, True, False, train)
    assert found
    assert keys(name, False, True, train) == found
    assert keys(name, True, True, train) == found
    assert keys(name, False, False, train) != found
