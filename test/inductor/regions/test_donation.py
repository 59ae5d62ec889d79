"""What a body may write over, and what it may not: a program for each way in which memory is still needed.

Every program runs three steps and is compared with eager after each (``memory_steps.check``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch._dynamo
from testing.kernels import fresh_graphs
from testing.memory_steps import check, code_of, leaf
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.regions import donation as region_donation
from torch._inductor.regions.donation import _own_inputs


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    with fresh_graphs(), torch._functorch.config.patch(enable_autograd_cache=False):
        yield


def choices(function: Callable[..., Any], *args: torch.Tensor) -> list[list[int]]:
    """What each body may write over, for a program that is right."""
    found: list[list[int]] = []
    decide = region_donation._dying_in_every_call

    def decided(subgraph: Any, around: Any) -> list[int]:
        found.append(decide(subgraph, around))
        return found[-1]

    with patch.object(region_donation, "_dying_in_every_call", decided):
        check(function, *args)
    return found


@torch.compiler.nested_compile_region
def layer(x, w):
    return torch.tanh(torch.tanh(x @ w).cos() @ w + x.mean())


def no_grad(*size: int) -> torch.Tensor:
    return leaf(*size, grad=False)


def test_what_a_layer_returns_dies_in_the_next_one():
    def f(x, w):
        x = x + 1
        for _ in range(3):
            x = layer(x, w)
        return x * 2

    assert choices(f, no_grad(4, 4), no_grad(4, 4)) == [[0]]


def test_saved_values_and_gradients_die_in_the_backward():
    def f(x, w, v):
        x = x + 1
        for weight in (w, v, w + v):
            x = layer(x, weight)
        return x * 2

    forward, backward = choices(f, leaf(4, 4), leaf(4, 4), leaf(4, 4))
    assert forward == [] and len(backward) >= 2


def test_the_code_of_the_backward_uses_their_memory():
    def f(x, w):
        return layer(layer(x + 1, w), w) * 2

    code = code_of(f, leaf(4, 4), leaf(4, 4))
    body = code[code.rindex("subgraph_0_0(args)") : code.rindex("def call(")]
    reused = [line for line in body.splitlines() if line.endswith("# reuse")]
    assert any(name in line for line in reused for name in ("tangents", "_mm", "_tanh", "_exp", "primals"))


@pytest.mark.parametrize("read", [0, 1, 2])
def test_an_operand_that_is_read_after_one_call(read):
    """A skip connection from before any of the calls."""

    def f(x, w):
        x, kept = x + 1, []
        for _ in range(3):
            kept.append(x)
            x = layer(x, w)
        return x + kept[read].sin()

    assert choices(f, no_grad(4, 4), no_grad(4, 4)) == [[]]
    check(f, leaf(4, 4), leaf(4, 4))


def test_an_operand_that_the_program_returns():
    def f(x, w):
        first = layer(x + 1, w)
        return first, layer(first, w)

    assert choices(f, no_grad(4, 4), no_grad(4, 4)) == [[]]


def test_an_operand_that_is_the_users():
    def f(x, w):
        return layer(x, w) + layer(x + 1, w)

    assert choices(f, no_grad(4, 4), no_grad(4, 4)) == [[]]


def test_one_tensor_in_two_places():
    def f(x):
        a, b = x + 1, x * 2
        return layer(a, a) + layer(b, b)

    # It is one operand then.
    assert choices(f, no_grad(4, 4)) == [[0]]
    check(f, leaf(4, 4))


def test_two_views_of_one_buffer():
    def f(x):
        a, b = x + 1, x * 2
        return layer(a, a.t()) + layer(b, b.t())

    assert choices(f, no_grad(4, 4)) == [[]]
    check(f, leaf(4, 4))


def test_a_buffer_and_a_part_of_it():
    """What is concatenated is made in its place of the whole."""

    def g(whole, part):
        y = (whole * 2.0 + 1.0).tanh()
        z = torch.tanh(y.t() @ y)
        return z + (part.cos() @ part.t()).sum()

    region = torch.compiler.nested_compile_region(g)

    def f(x, y):
        total = 0
        for s in (1.0, 2.0):
            part = (x * s).exp()
            total = total + region(torch.cat([part, (y * s).cos()]), part)
        return total

    assert choices(f, no_grad(4, 4), no_grad(4, 4)) == [[]]
    check(f, leaf(4, 4), leaf(4, 4))


def test_a_buffer_and_its_view_made_by_an_operator():
    def g(real, seen):
        y = (real * 2.0 + 1.0).tanh()
        z = torch.tanh(y.flatten(1) @ y.flatten(1).t())
        return z.sum() + (torch.view_as_real(seen * 2).cos()).sum()

    region = torch.compiler.nested_compile_region(g)

    def f(x):
        total = 0
        for s in (1.0, 2.0):
            real = (x * s).exp()
            total = total + region(real, torch.view_as_complex(real))
        return total

    assert choices(f, no_grad(4, 4, 2)) == [[]]


def test_a_part_of_a_buffer_is_not_given_away():
    def f(x, w):
        a, b = (x @ x).split(4), (x * 2 @ x).split(4)
        return layer(a[0], w) + layer(b[0], w) + a[1] + b[1]

    assert choices(f, no_grad(8, 8), no_grad(8, 8)) == [[]]
    check(f, leaf(8, 8), leaf(8, 8))


def test_a_transposed_buffer_is_given_away():
    def f(x, w):
        return layer((x @ w).t(), w) + layer((x * 2 @ w).t(), w)

    assert choices(f, no_grad(4, 4), no_grad(4, 4)) == [[0]]
    check(f, leaf(4, 4), leaf(4, 4))


def test_an_expanded_buffer_is_not():
    def f(x, w):
        return layer(x.sum(0).expand(4, 4), w) + layer(x.prod(0).expand(4, 4), w)

    check(f, no_grad(4, 4), no_grad(4, 4))
    check(f, leaf(4, 4), leaf(4, 4))


def test_a_body_that_returns_its_operand():
    @torch.compiler.nested_compile_region
    def seen(x, w):
        return x.view(-1), torch.tanh(x @ w).cos() @ w

    def f(x, w):
        flat, y = seen(x + 1, w)
        again, z = seen(y, w)
        return flat.sin() + again, z

    assert choices(f, no_grad(4, 4), no_grad(4, 4)) == [[]]
    check(f, leaf(4, 4), leaf(4, 4))


def test_a_body_that_writes_to_its_operand():
    @torch.compiler.nested_compile_region
    def written(x, w):
        x.mul_(2)
        return torch.tanh(x @ w).cos() @ w

    def f(x, w):
        a = x + 1
        b = written(a, w)
        c = b * 1
        return a, written(c, w) + c

    check(f, no_grad(4, 4), no_grad(4, 4))
    check(f, leaf(4, 4), leaf(4, 4))


def test_a_call_that_is_the_last_reader_of_what_another_call_reads():
    def f(x, w):
        a = x + 1
        b = layer(a, w)
        return layer(a, w + b)

    assert choices(f, no_grad(4, 4), no_grad(4, 4)) == [[]]


def test_a_call_in_a_body():
    @torch.compiler.nested_compile_region
    def outer(x, w):
        return layer(layer(x, w), w).cos() @ w

    def f(x, w):
        return outer(outer(x + 1, w), w)

    check(f, no_grad(4, 4), no_grad(4, 4))
    check(f, leaf(4, 4), leaf(4, 4))


def test_the_results_of_a_call_that_share_a_buffer():
    @torch.compiler.nested_compile_region
    def split(x, w):
        a, b = (x @ w).split(4, dim=-1)
        return a, b

    def f(x, w):
        a, b = split(x + 1, w)
        c, d = split(a, w)
        return c + d + b

    check(f, no_grad(4, 4), no_grad(4, 8))
    check(f, leaf(4, 4), leaf(4, 8))


def test_a_backward_that_is_run_twice():
    """Without donated inputs of the backward nothing that was saved is given away."""

    def f(x, w):
        return layer(layer(x + 1, w), w).sin()

    torch._dynamo.reset()
    x, w = leaf(4, 4), leaf(4, 4)
    f(x, w).sum().backward()
    expected = x.grad.clone(), w.grad.clone()
    with torch._functorch.config.patch(donated_buffer=False):
        result = torch.compile(f, fullgraph=True)(x, w).sum()
        for _ in range(3):
            x.grad = w.grad = None
            result.backward(retain_graph=True)
            torch.testing.assert_close((x.grad, w.grad), expected)


@pytest.mark.parametrize("setting", [{"cpp_wrapper": True}, {"memory_planning": True}, {"allow_buffer_reuse": False}])
def test_other_ways_to_place_buffers(setting):
    def f(x, w):
        return layer(layer(x + 1, w), w).sin()

    with config.patch(setting):
        check(f, no_grad(4, 4), no_grad(4, 4))


def test_symbolic_sizes():
    def f(x, w):
        return layer(layer(x + 1, w), w).sin()

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=True)
    for rows, train in itertools.product((3, 5, 8), (False, True)):
        x, w = leaf(rows, 4, grad=train), leaf(4, 4, grad=train)
        torch.testing.assert_close(compiled(x, w), f(x, w))
        if train:
            compiled(x, w).sum().backward()
            grads = x.grad, w.grad
            x.grad = w.grad = None
            f(x, w).sum().backward()
            torch.testing.assert_close(grads, (x.grad, w.grad))


def test_code_is_kept_for_each_choice():
    """A known body whose operands die elsewhere is lowered again, then both are known."""

    def dying(x, w):
        return layer(layer(x + 1, w), w)

    def living(x, w):
        return layer(x, w), layer(x + 1, w)

    def told(program: Callable[..., Any]) -> dict[str, int]:
        torch._dynamo.reset()
        counters.clear()
        x, w = no_grad(4, 4), no_grad(4, 4)
        # The program as a whole is new each time.
        torch.testing.assert_close(torch.compile(lambda x, w: program(x, w), fullgraph=True)(x, w), program(x, w))
        return dict(counters["region_bodies"])

    with patch.object(torch._inductor.codecache.FxGraphCache, "_lookup_graph", lambda *a, **k: (None, {})):
        assert told(dying) == {"lowered": 1}
        assert told(living) == {"found": 1, "lowered": 1}
        assert told(dying) == told(living) == {"found": 1}


def test_inputs_that_are_views_of_one_another():
    base = torch.zeros(4)
    inputs = {"a": base, "b": torch.zeros(4), "c": base[1:], "n": 3}
    around = SimpleNamespace(graph_input_names=list(inputs), example_inputs=list(inputs.values()))
    assert _own_inputs(around) == {"b"}
