"""What Inductor's code does for each call of a region, besides what the flat code does."""

import re

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch._inductor.utils import run_and_get_code


LAYERS = 4


def _program(x, weights):
    for w in weights:
        x = x + torch.nn.functional.gelu(x @ w).tanh().cos() * 0.5
    return x


def _code(train, **settings):
    """The code of the forward, and of the backward if there is one, with regions."""
    torch._dynamo.reset()
    x = torch.randn(4, 4)
    weights = [torch.randn(4, 4, requires_grad=train) for _ in range(LAYERS)]

    def step():
        result = torch.compile(_program, fullgraph=True)(x, weights)
        if train:
            result.sum().backward()
        return result.detach()

    with (
        torch._dynamo.config.patch(use_graph_deduplication=True),
        torch._inductor.config.patch(force_disable_caches=True, **settings),
    ):
        result, codes = run_and_get_code(step)
    torch.testing.assert_close(result, _program(x, weights).detach())
    assert any("subgraph" in code for code in codes)
    return codes


def _split(code):
    """The lines of the bodies, and those of the graph around their calls."""
    bodies, around, inside = [], [], False
    for line in code.splitlines():
        if line.startswith(("def ", "class ")):
            inside = "graph" in line
        (bodies if inside else around).append(line.strip())
    return bodies, around


@pytest.mark.parametrize("train", [False, True])
def test_an_operand_is_checked_once_and_by_the_caller(train):
    for code in _code(train):
        bodies, around = _split(code)
        assert not [line for line in bodies if line.startswith("assert_size_stride") and "'input'" in line]
        checked = [line for line in around if line.startswith("assert_size_stride") and "'input'" in line]
        assert len(checked) == len(set(checked)) > 0


def test_every_weight_is_checked():
    (code,) = _code(False)
    _, around = _split(code)
    # From 2.15 on, one line checks inputs of equal sizes together.
    checks = [line for line in around if line.startswith("assert_size_stride") and "'input')" in line]
    assert len({name for line in checks for name in re.findall(r"arg\d+_1", line)}) == LAYERS + 1


def test_an_operand_of_other_strides_is_still_refused():
    (code,) = _code(False)
    module = torch._inductor.codecache.PyCodeCache.load(code)
    arguments = [torch.randn(4, 4) for _ in range(LAYERS + 1)]
    module.call(list(arguments))
    arguments[1] = arguments[1].t()
    with pytest.raises(AssertionError, match="expected size"):
        module.call(arguments)


def test_other_bodies_check_their_operands():
    """A branch of a condition is no region: its operands may come from anywhere."""

    def program(x):
        return torch.cond(x.sum() > 0, lambda a: a.sin() @ a, lambda a: a.cos() @ a, (x,))

    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        _, codes = run_and_get_code(torch.compile(program, fullgraph=True), torch.randn(4, 4))
    bodies, _ = _split("\n".join(codes))
    assert [line for line in bodies if "'input')" in line]
