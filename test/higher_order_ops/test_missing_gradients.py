"""Note [A result without a gradient]: a result that gets no gradient leaves out of the backward what leads to it."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters


X = torch.linspace(0.1, 1.0, 6, dtype=torch.float64).view(2, 3)


class TakesTheShape(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, like):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


@torch.library.custom_op("regions_gradients::take_the_shape", mutates_args=())
def take_the_shape(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return x * 2


take_the_shape.register_fake(lambda x, like: torch.empty_like(x))
take_the_shape.register_autograd(lambda ctx, gradient: (gradient * 2, None))

READERS = {
    "expand_as": lambda x, like: x.sum(0, keepdim=True).expand_as(like),
    "type_as": lambda x, like: x.type_as(like) * 2,
    "view_as": lambda x, like: (x * 2).view_as(like),
    "autograd.Function": TakesTheShape.apply,
    "custom operator": take_the_shape,
}


def layer(x):
    """The gradients of the last two results are infinity times zero if they are given zeros."""
    x = x.sin() + x
    zero = (x - x.detach()) * x.detach()
    return x.cos(), zero.abs().sqrt(), zero.abs().sqrt() * 2


def gradients(program, compiled, backend):
    torch._dynamo.reset()
    x = X.clone().requires_grad_()
    out = torch.compile(program, backend=backend, fullgraph=True)(x) if compiled else program(x)
    return torch.autograd.grad(out.sum(), x)[0]


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_that_gives_no_gradient(reader, backend="aot_eager"):
    def program(x, run=layer):
        for _ in range(4):
            y, like, _ = run(x)
            x = READERS[reader](y, like)
        return x

    counters.clear()
    marked = gradients(lambda x: program(x, torch.compiler.nested_compile_region(layer)), True, backend)
    assert counters["regions"]["reused"] == 2  # the first call is given a leaf
    wanted = gradients(program, False, backend)
    assert wanted.isfinite().all()
    torch.testing.assert_close(marked, wanted)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_calls_whose_results_without_a_gradient_differ(backend):
    def program(x, run=layer):
        for n in range(4):
            y, one, other = run(x)
            read, not_read = (one, other) if n % 2 else (other, one)
            x = TakesTheShape.apply(y + n * read.clamp(min=1), not_read)
        return x

    marked = gradients(lambda x: program(x, torch.compiler.nested_compile_region(layer)), True, backend)
    wanted = gradients(program, False, backend)
    torch.testing.assert_close(marked, wanted, equal_nan=True)


def test_a_region_in_a_region():
    mark = torch.compiler.nested_compile_region
    inner = mark(layer)

    def outer(x, run=layer):
        for _ in range(2):
            y, like, _ = run(x)
            x = TakesTheShape.apply(y, like).sin()
        return x, like

    def program(x, run=outer):
        for _ in range(4):
            y, like = run(x)
            x = TakesTheShape.apply(y, like)
        return x

    marked = gradients(lambda x: program(x, mark(lambda x: outer(x, inner))), True, "aot_eager")
    wanted = gradients(program, False, "aot_eager")
    assert wanted.isfinite().all()
    torch.testing.assert_close(marked, wanted)


def test_a_call_without_any_gradient():
    def program(x, run=layer):
        y = x
        for _ in range(4):
            x = TakesTheShape.apply(x, run(y)[1])
        return x

    marked = gradients(lambda x: program(x, torch.compiler.nested_compile_region(layer)), True, "aot_eager")
    torch.testing.assert_close(marked, gradients(program, False, "aot_eager"))


@pytest.mark.parametrize("read", [torch.Tensor.conj, lambda z: z.conj().imag, lambda z: z.conj().imag * 1j])
def test_a_gradient_with_a_lazy_bit(read):
    def body(z):
        return z.sin() * z, z.cos()

    def program(x, run=body):
        z = torch.complex(x, x.sin())
        for _ in range(4):
            z, other = run(z)
            z = read(z) * 1.5 + read(other)
            z = z + 0j
        return z.real

    marked = gradients(lambda x: program(x, torch.compiler.nested_compile_region(body)), True, "aot_eager")
    torch.testing.assert_close(marked, gradients(program, False, "aot_eager"))
