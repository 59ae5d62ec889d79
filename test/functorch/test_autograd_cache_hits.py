"""A hit of AOTAutogradCache computes what the program that hit means, not the one that was compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from testing.kernels import fresh_graphs
from testing.keyed_model import Model, Reordered
from torch._dynamo.utils import counters


@pytest.fixture(autouse=True)
def own_cache() -> Iterator[None]:
    with fresh_graphs():
        yield


def state(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def check(
    program: Callable[..., Any], *calls: tuple[Any, ...], hit: bool, dynamic: bool = False, **config: Any
) -> None:
    """Compiles a program, compares each call with eager, and whether the first compile was a hit."""
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(**config):
        compiled = torch.compile(program, dynamic=dynamic)
        for number, call in enumerate(calls):
            theirs, ours = ([state(value) for value in call] for _ in range(2))
            expected, actual = program(*theirs), compiled(*ours)
            torch.testing.assert_close(actual, expected)
            torch.testing.assert_close(ours, theirs)
            leaves = [
                (a, b) for a, b in zip(ours, theirs, strict=True) if isinstance(a, torch.Tensor) and a.requires_grad
            ]
            if leaves:
                for value, inputs in ((actual, [a for a, _ in leaves]), (expected, [b for _, b in leaves])):
                    value.square().sum().backward(inputs=inputs)
                for a, b in leaves:
                    # Rounding goes by the largest terms of a sum: a small element is no nearer than a large one.
                    torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=2e-6 * max(1.0, b.grad.abs().max().item()))
            if number == 0:
                found = counters["aot_autograd"]
                assert (found["autograd_cache_hit"], found["autograd_cache_miss"]) == ((1, 0) if hit else (0, 1)), found


def test_sizes_with_other_names():
    """Which symbol stands for which size is found anew: the arguments have other names, and other sizes."""

    def one(x, y):
        return (x @ y).sin() + x.shape[0]

    def other(left, right):
        product = left @ right
        return product.sin() + left.shape[0]

    sizes = [(3, 4, 5), (6, 7, 8), (4, 3, 2), (9, 9, 9)]
    calls = [(torch.randn(a, b), torch.randn(b, c)) for a, b, c in sizes]
    check(one, *calls, hit=False, dynamic=True)
    check(other, *reversed(calls[:3]), hit=True, dynamic=True)


def test_guards_of_the_entry():
    """A size that the compiled program relies on is guarded in the program that hits, too."""

    def one(x):
        return x.view(-1, 2).sum(1) if x.shape[0] % 2 == 0 else x * 3

    def other(value):
        return value.view(-1, 2).sum(1) if value.shape[0] % 2 == 0 else value * 3

    calls = [(torch.randn(n),) for n in (8, 12, 7, 9, 10)]
    check(one, *calls, hit=False, dynamic=True)
    check(other, *calls, hit=True, dynamic=True)


def test_training_with_other_names():
    def one(x, w):
        return torch.nn.functional.gelu(x @ w)

    def other(a, b):
        return torch.nn.functional.gelu(a @ b)

    calls = [(torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)) for _ in range(2)]
    check(one, *calls, hit=False)
    check(other, *reversed(calls), hit=True)


def test_arguments_that_are_written():
    def one(x, y):
        x.add_(y)
        return x * 2

    def other(y, x):
        y.add_(x)
        return y * 2

    check(one, (torch.randn(4), torch.randn(4)), hit=False)
    check(other, (torch.randn(4), torch.randn(4)), hit=True)


def separate() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(8), torch.zeros(8)


def one_tensor_twice() -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.zeros(8)
    return base, base.view(8)


def overlapping() -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.zeros(10)
    return base[:8], base[2:]


def test_arguments_that_share_memory():
    """Stock has one key for all three calls, and loses the write in the others than the first."""

    def program(x, y):
        z = y * 2
        x.add_(1)
        return z + y.flip(0)

    for arguments in (separate, one_tensor_twice, overlapping):
        torch._dynamo.reset()
        assert torch.compile(program)(*arguments()).tolist() == program(*arguments()).tolist(), arguments


def test_order_of_independent_operators():
    def one(x, w):
        y = x @ w
        a, b = x.sin(), w.cos()
        return y + a @ b

    def other(x, w):
        y = x @ w
        b = w.cos()
        return y + x.sin() @ b

    calls = [(torch.randn(4, 8), torch.randn(8, 8))]
    check(one, *calls, hit=False)
    check(other, *calls, hit=True)


def test_parameters_of_another_model():
    torch.manual_seed(1)
    check(Model(depth=2), (torch.randn(2, 5, 16, requires_grad=True),), hit=False)
    torch.manual_seed(2)
    check(Model(Reordered, depth=2), (torch.randn(2, 5, 16, requires_grad=True),), hit=True)


@pytest.mark.parametrize("first", ["flag", "mark"])
def test_regions_found_either_way(first):
    x = torch.randn(2, 5, 16, requires_grad=True)
    ways = [({}, {"use_graph_deduplication": True}), ({"marked": True}, {})]
    if first == "mark":
        ways.reverse()
    for number, (options, config) in enumerate(ways):
        torch.manual_seed(number)
        with torch.no_grad():
            check(Model(**options), (x.detach(),), hit=number == 1, **config)


def test_options_that_stock_leaves_out():
    """Its key has neither of them: they may be functions."""
    from torch._functorch import config

    def program(x):
        return x.sin().cos()

    x = torch.randn(4, requires_grad=True)
    check(program, (x,), hit=False)
    with config.patch(activation_memory_budget_solver="greedy"):
        check(program, (x,), hit=False)
    check(program, (x,), hit=True)
    with config.patch(joint_custom_pass=lambda graph, inputs: graph):
        torch._dynamo.reset()
        counters.clear()
        torch.compile(program)(x)
        assert counters["aot_autograd"]["autograd_cache_bypass"] == 1
