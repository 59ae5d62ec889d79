"""What tracing reads of a tensor, besides its metadata and without an operator, differs from call to call."""

import pytest
import torch
import torch._dynamo
import torch.autograd.forward_ad as fwAD
from torch._dynamo.utils import counters


X = torch.linspace(0.1, 1.0, 6).view(2, 3)


def the_number_of_an_argument(mark):
    run = mark(lambda x, k: x.sin() * k.item())

    def program(x):
        for n in range(4):
            x = run(x, torch.tensor(n + 1))
        return x

    return program


def a_size_by_the_number_of_an_argument(mark):
    run = mark(lambda x, k: x.sin()[:, : k.item()].sum() + x)

    def program(x):
        for n in range(4):
            x = run(x, torch.tensor(n % 2 + 1))
        return x

    return program


def a_number_that_the_frame_has_read(mark):
    run = mark(lambda x, k: x.sin() * k.item())

    def program(x):
        numbers = [x.sum().int() + n for n in range(4)]
        total = sum(k.item() for k in numbers)
        for k in numbers:
            x = run(x, k)
        return x + total

    return program


def the_number_of_a_result(mark):
    run = mark(lambda x: (x.sin(), torch.tensor(2)))

    def program(x):
        for _ in range(4):
            x, k = run(x)
            x = x.repeat(1, k.item())[:, :3]
        return x

    return program


def the_storage_of_an_argument(mark):
    run = mark(lambda x: x.sin() * x.untyped_storage().size())

    def program(x):
        for n in range(4):
            x = run(torch.cat([x, x])[:2] if n % 2 else x * 1)
        return x

    return program


def the_storage_of_a_result(mark):
    run = mark(lambda x: torch.cat([x, x]).sin()[:2])

    def program(x):
        for _ in range(4):
            x = run(x)
            x = x * x.untyped_storage().size()
        return x

    return program


def the_base_of_a_result(mark):
    run = mark(lambda x: x.sin().view(-1).view(2, 3))

    def program(x):
        for _ in range(4):
            x = run(x)
            x = x * (2 if x._base is None else 3)
        return x

    return program


def the_number_of_a_tensor_that_is_written(mark):
    run = mark(lambda x, k: x.sin() + k.fill_(7))

    def program(x):
        numbers = [torch.tensor(1) for _ in range(4)]
        for k in numbers:
            x = run(x, k)
        for k in numbers:
            x = x * k.item()
        return x

    return program


def the_number_of_a_view_of_what_is_written(mark):
    run = mark(lambda x, k: x.sin() + k.add_(3))

    def program(x):
        numbers = [torch.tensor([1, 2]) for _ in range(4)]
        seconds = [k[1] for k in numbers]
        for k in numbers:
            x = run(x, k.sum(0, keepdim=True)) + run(x, k[0])
        return x * sum(k.item() for k in seconds) * sum(k[0].item() for k in numbers)

    return program


def tangents(mark):
    run = mark(lambda x: x.sin() * x)

    def program(x):
        with fwAD.dual_level():
            x = fwAD.make_dual(x, torch.ones_like(x))
            for _ in range(4):
                x = run(x)
            primal, tangent = fwAD.unpack_dual(x)
            return primal + tangent

    return program


PROGRAMS = [
    *(the_number_of_an_argument, a_size_by_the_number_of_an_argument, a_number_that_the_frame_has_read),
    *(the_number_of_a_result, the_storage_of_an_argument, the_storage_of_a_result, the_base_of_a_result, tangents),
    *(the_number_of_a_tensor_that_is_written, the_number_of_a_view_of_what_is_written),
]


@torch._dynamo.config.patch(capture_scalar_outputs=True)
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_as_without_a_mark(make):
    wanted, got = make(lambda body: body), make(torch.compiler.nested_compile_region)
    torch.testing.assert_close(torch.compile(got, backend="eager", fullgraph=True)(X), wanted(X))


def test_a_result_that_is_a_view_is_made_like_one():
    got = torch.compile(the_base_of_a_result(torch.compiler.nested_compile_region), backend="eager", fullgraph=True)
    got(X)
    assert counters["regions"]["reused"] == 2


def a_view_in_a_layer(mark):
    run = mark(lambda x: (views_of(x)[0].sin() + x).contiguous())

    def program(x):
        for _ in range(4):
            x = run(x)
        return x

    return program


def a_view_as_an_argument(mark):
    run = mark(lambda x, view: x.sin() * x)

    def program(x):
        for _ in range(4):
            x, view = views_of(x)
            x = run(x.t().contiguous(), view)
        return x

    return program


def views_of(x):
    """A tensor of another shape than when a view of it was made, and that view."""
    x = x.cos() * 2
    view = x.view(-1)
    view[0] = 0
    x.transpose_(0, 1)
    return x.t().sin().t(), view


@pytest.mark.parametrize("make", [a_view_in_a_layer, a_view_as_an_argument], ids=lambda make: make.__name__)
def test_a_view_whose_base_has_another_shape_by_now(make):
    run, mark = make(lambda body: body), torch.compiler.nested_compile_region
    x = torch.linspace(0.1, 1.0, 4, dtype=torch.float64).view(2, 2).requires_grad_()
    got, wanted = torch.compile(make(mark), backend="aot_eager", fullgraph=True)(x), run(x)
    torch.testing.assert_close(got, wanted)
    gradients = [torch.autograd.grad(out.sum(), x) for out in (got, wanted)]
    torch.testing.assert_close(*gradients)


def test_a_view_of_fixed_sizes_in_a_storage_of_dynamic_size():
    run = torch.compiler.nested_compile_region(lambda x: x.sin() * x)

    def program(x):
        for _ in range(4):
            x = run(x)
        return x

    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    for x in (torch.rand(8, 4).t(), torch.rand(1, 8).expand(4, 8), torch.rand(9, 8)[5:]):
        wanted = x
        for _ in range(4):
            wanted = wanted.sin() * wanted
        torch.testing.assert_close(compiled(x), wanted)
