"""A backend looks into a body once, however many calls it has: the fake kernel of an operator in it counts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch._dynamo
from testing.cases import some
from testing.kernels import fresh_graphs


class Counted:
    """An operator that counts how often its fake kernel runs."""

    def __init__(self, name: str) -> None:
        self.fake_runs = 0

        @torch.library.custom_op(f"region_boundary_cost::{name}", mutates_args=())
        def operator(x: torch.Tensor) -> torch.Tensor:
            return x.sin()

        @operator.register_fake
        def _(x: torch.Tensor) -> torch.Tensor:
            self.fake_runs += 1
            return torch.empty_like(x)

        operator.register_autograd(
            lambda ctx, grad: grad * ctx.saved_tensors[0].cos(),
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        )
        self.operator = operator


COUNTED = Counted("sine")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(COUNTED.operator(self.first(x))).relu()


class Stack(torch.nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # One more operator than the blocks have, so that the first block's input is like the others'.
        x = x * self.blocks[0].first.weight[0, 0]
        for block in self.blocks:
            x = block(x)
        return x.sum()


def _mark(model: Stack) -> None:
    for block in model.blocks:
        block.forward = torch.compiler.nested_compile_region(block.forward)


def _fresh() -> None:
    torch._dynamo.reset()
    torch._subclasses.FakeTensorMode.cache_clear()


def _fake_runs_in_backend(layers: int, backend: str, train: bool, dynamic: bool = False) -> int:
    """How often the backend runs the fake kernel when it compiles a model of marked blocks."""
    from torch._dynamo.backends.registry import lookup_backend

    _fresh()
    model = Stack(layers)
    _mark(model)
    inner, at_entry = lookup_backend(backend), 0

    def compiled(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        nonlocal at_entry
        at_entry = COUNTED.fake_runs
        return inner(gm, inputs)

    run = torch.compile(model, backend=compiled, fullgraph=True, dynamic=dynamic)
    # What an earlier run of the test has left in the cache of the machine would be found.
    with fresh_graphs(), torch.set_grad_enabled(train):
        result = run(torch.randn(4, 8))
        if train:
            result.backward()
    return COUNTED.fake_runs - at_entry


LOOKED_INTO = list(itertools.product(["aot_eager", "inductor"], [True, False], [True, False]))


@pytest.mark.parametrize("backend, train, dynamic", some(LOOKED_INTO, LOOKED_INTO[:5]))
def test_body_is_looked_into_once(backend: str, train: bool, dynamic: bool) -> None:
    few, many = (_fake_runs_in_backend(n, backend, train, dynamic) for n in (4, 12))
    assert 0 < few == many


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients_are_those_of_eager(backend: str) -> None:
    _fresh()
    expected, model = Stack(5), Stack(5)
    _mark(model)
    x = torch.randn(4, 8)
    expected(x).backward()
    torch.compile(model, backend=backend, fullgraph=True)(x).backward()
    for ours, theirs in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)
