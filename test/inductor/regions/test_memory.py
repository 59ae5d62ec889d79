"""What regions do to memory when Inductor compiles them: one small program for each way in which stock goes wrong.

Every program runs three training steps and is compared with eager after each: results before and after the backward,
gradients, parameters, and the tensors that the user passed in.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo
from testing.memory_steps import check, code_of, leaf


region = torch.compiler.nested_compile_region


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# 1. The donated inputs of the backward graph are numbered; stock applies the numbers to the inputs of every body.


def test_donation_is_not_about_the_arguments_of_a_body() -> None:
    @region
    def r(x):
        return x.sin(), x.cos()

    def f(x):
        a, b = r(x)
        return r(a)

    check(f, leaf(4))


# 2. A saved value that is an argument or a result looks like memory of its own to the graph around the body.


def test_a_saved_argument_is_not_donated() -> None:
    @region
    def r(x, w):
        return (x * w).exp() * w

    def f(x, w, v):
        return r(r(x, w) * v.sin(), w * 1) * v

    check(f, leaf(4, 4), leaf(4, 4), leaf(4, 4))


def test_a_saved_result_is_not_donated() -> None:
    @region
    def r(x):
        return x.exp()

    def f(x):
        a = r(x)
        return a, r(a.sin())

    check(f, leaf(4))


# Passes on the joint graph remove copies, and the partitioner makes one value of equal ones. What a body has saved of such
# an operand is a view of what is left.


def _halves(k, w):
    y = (k @ w).sin() * 0.5 + 1
    return y.tanh() * 2 - 0.1


def _of_a_copy_of_an_input(layer, x, w):
    k = x.clone()
    for _ in range(3):
        k = layer(k, w)
    return k


def _of_a_copy_of_a_result(layer, x, w):
    a = x.sin()
    k = a.clone()
    for _ in range(3):
        k = layer(k, w)
    return a, k


def _of_a_copy_of_a_value_that_another_body_saves(layer, x, w):
    a = layer(x, w)
    return layer(a, w) + layer(a.clone(), w)


def _of_equal_values(layer, x, w):
    return sum(layer(x.sin(), w) * (i + 1) for i in range(4))


def _of_equal_copies(layer, x, w):
    a = x.sin()
    return sum(layer(a.clone(), w) * (i + 1) for i in range(4)), a


def _of_equal_copies_in_a_body(layer, x, w):
    @region
    def outer(x, w):
        a = x.sin()
        return layer(a.clone(), w) + layer(a * 1, w) + layer(x.sin(), w)

    return outer(outer(x, w), w)


@pytest.mark.parametrize("way", ["mark", "flag"])
@pytest.mark.parametrize(
    "program",
    [
        _of_a_copy_of_an_input,
        _of_a_copy_of_a_result,
        _of_a_copy_of_a_value_that_another_body_saves,
        _of_equal_values,
        _of_equal_copies,
        _of_equal_copies_in_a_body,
    ],
)
def test_a_saved_view_of_an_operand_that_a_pass_replaces_is_not_donated(program, way) -> None:
    layer = region(_halves) if way == "mark" else _halves
    with torch._dynamo.config.patch(use_graph_deduplication=way == "flag"):
        check(lambda x, w: program(layer, x, w), leaf(4, 4), leaf(4, 4))


# 3. Several outputs of a body live in one buffer.


def test_outputs_at_an_offset() -> None:
    @region
    def r(x, w):
        q, k, v = (x @ w).split(4, dim=-1)
        return torch.tanh(q @ k.transpose(-1, -2)) @ v

    def f(x, w):
        return r(r(x, w), w).tanh()

    check(f, leaf(2, 3, 4), leaf(4, 12))


# 4. A body that writes to its operand.


def test_reads_before_and_after_a_call_that_writes() -> None:
    @region
    def r(b):
        b.mul_(0.5)
        return b.sum()

    def f(b):
        a = b.sin()
        s = r(b)
        c = b.sin()
        return a, s, c, r(b)

    check(f, leaf(4, grad=False))


def test_a_call_that_only_writes() -> None:
    @region
    def r(b):
        b.mul_(0.5)
        return b.sum()

    def f(b):
        r(b)
        c = b.sin()
        r(b)
        return c, b.cos()

    check(f, leaf(4, grad=False))


def test_a_call_that_writes_to_an_intermediate() -> None:
    @region
    def r(b, x):
        b.add_(x)
        return b * x

    def f(x):
        b = x.cos()
        return r(b, x), r(b, x + 1), b

    check(f, leaf(4, grad=False))


# 5. Regions inside regions: the backward must not run the inner forward again.


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_dropout_in_an_inner_region_has_one_mask(backend: str) -> None:
    @region
    def inner(x):
        return torch.nn.functional.dropout(x.sin(), 0.5) * x

    @region
    def outer(x):
        return inner(x) + 0 * inner(x * 2)

    def f(x, z):
        return outer(x), outer(z)

    torch._dynamo.reset()
    args = [torch.full((256,), 0.7, requires_grad=True) for _ in range(2)]
    out = torch.compile(f, backend=backend, fullgraph=True)(*args)
    sum(o.sum() for o in out).backward()
    for a, o in zip(args, out):
        assert torch.equal(o != 0, a.grad != 0)


def test_an_inner_region_has_right_gradients() -> None:
    @region
    def inner(x):
        return x.sin() * x

    @region
    def outer(x):
        return inner(x).exp() + inner(x * 2)

    check(lambda x: outer(outer(x)), leaf(4))


# 6. Other shapes of the same questions, right in stock as well.


def test_other_strides_and_offsets() -> None:
    @region
    def r(x):
        return x.sin() * x.cos()

    def f(x, y):
        return r(x), r(y.t()), r((x + y).t()), r(x[1:].t().contiguous().view(4, 3).t()), r(y[:3])

    check(f, leaf(4, 4), leaf(4, 4))


def test_gradients_that_are_one_tensor() -> None:
    @region
    def r(x, y):
        return x + y

    check(lambda x, y: r(r(x, y), y), leaf(4), leaf(4))


def test_outputs_without_a_gradient() -> None:
    @region
    def r(x):
        return x.sin(), x.detach() * 2, x > 0

    def f(x):
        a, b, m = r(x)
        return *r(a), b, m

    check(f, leaf(4))


# 7. The flag.


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(2, 5, 2, 4).transpose(1, 2) for t in self.qkv(self.norm(x)).split(8, dim=-1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(2, 5, 8))


@pytest.mark.parametrize("flag", [True, False])
def test_layers_of_attention(flag: bool) -> None:
    layers = torch.nn.ModuleList(Attention() for _ in range(3))

    call = Attention.forward if flag else region(Attention.forward)

    def marked(x: torch.Tensor, *_: Any) -> torch.Tensor:
        for layer in layers:
            x = x + call(layer, x)
        return x

    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        check(marked, leaf(2, 5, 8), *layers.parameters())


# 8. Reuse stays on where it is safe.


def test_memory_is_still_reused_inside_a_body_and_around_it() -> None:
    @region
    def r(x, w):
        return ((x @ w).relu() @ w).tanh() + 1

    code = code_of(lambda x, w: r(r(x, w), w).exp() * 2, leaf(8, 8, grad=False), leaf(8, 8, grad=False))
    body, call = code[code.index("(args):") :].split("def call(")
    assert "# reuse" in body  # what one product left, by the next kernel
    assert "# reuse" in call  # what the call returned, by the kernel after it


def test_memory_of_saved_values_is_still_donated() -> None:
    @region
    def r(x):
        return x.sin() * x

    def f(x, y):
        return (r(x) + r(y)).exp().sin()

    backward = code_of(f, leaf(8, 8), leaf(8, 8)).split("def call(")[-1]
    assert "# reuse" in backward


@pytest.mark.parametrize(
    "read", [lambda z, other: z * 1.5 + other, lambda z, other: z.conj() * 1.5 + other.conj().imag]
)
def test_a_value_with_the_conj_bit_is_saved(read):
    """The derivative of a complex operator is a conjugate, which the forward body saves as a view with the conj bit."""

    def body(z):
        return z.sin() * z, z.cos()

    def program(x, run=body):
        z = torch.complex(x, x.sin())
        for _ in range(4):
            z = read(*run(z)) * 0.2 + 0j
        return z.real

    x = torch.linspace(0.1, 1.0, 6, dtype=torch.float64).requires_grad_()
    compiled = torch.compile(lambda x: program(x, region(body)), backend="inductor")
    got, wanted = (torch.autograd.grad(run(x).sum(), x)[0] for run in (compiled, program))
    torch.testing.assert_close(got, wanted)
