"""What a mark is put on: wrappers of marked functions, methods, what is no callable, and marks made while tracing."""

import functools

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters


mark = torch.compiler.nested_compile_region
X = torch.linspace(-1, 1, 12).view(3, 4)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def plain(x):
    return (x.sin() + x.cos()).tanh()


def _doubles(function):
    @functools.wraps(function)
    def doubled(x):
        return function(x) * 2

    return doubled


@pytest.mark.parametrize("wrap", [_doubles, torch.no_grad(), torch.vmap], ids=["wraps", "no_grad", "vmap"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_mark_of_what_wraps_a_marked_function_runs_the_wrapper(wrap, backend):
    """functools.wraps gives the wrapper the attributes of the mark, and the wrapper was dropped."""
    marked = mark(wrap(mark(plain)))

    def program(x, step):
        for _ in range(3):
            x = x + step(x)
        return x

    x, y = (X.clone().requires_grad_() for _ in range(2))
    wanted = program(x, wrap(plain))
    got = torch.compile(program, backend=backend)(y, marked)
    torch.testing.assert_close(got, wanted)
    wanted.sum().backward()
    got.sum().backward()
    torch.testing.assert_close(y.grad, x.grad)


def test_a_mark_of_a_mark_is_the_mark_of_the_function():
    assert mark(mark(plain)).__marked_compile_region_fn__ is plain


class Holder:
    @mark
    def step(self, x):
        return plain(x) * self.scale


def test_a_bound_method_that_is_marked_may_be_marked_again():
    held = Holder()
    held.scale = 2.0
    step = mark(held.step)
    torch.testing.assert_close(torch.compile(lambda x: step(step(x)), backend="eager")(X), step(step(X)))


@pytest.mark.parametrize(
    ("marks", "says"),
    [(lambda: mark(3), "marks a callable"), (lambda: mark(plain, max_reuse_entries=None), "max_reuse")],
)
def test_what_cannot_be_marked_is_refused(marks, says):
    with pytest.raises(TypeError, match=says):
        marks()

    def program(x):
        try:
            mark(3)
        except TypeError:
            return x + 1
        return x

    torch.testing.assert_close(torch.compile(program, backend="eager")(X), X + 1)


def _of(factor):
    """Marks of one code: each has a reuse_hash_fn of its own, whose number means something to that mark only."""

    @mark(reuse_hash_fn=lambda x: 0)
    def step(x):
        return (x * factor).sin()

    return step


def test_numbers_of_one_marks_hash_function_are_not_those_of_anothers():
    steps = [_of(1.0), _of(2.0), _of(3.0)]

    def program(x):
        for step in steps:
            x = step(step(x))
        return x

    torch.testing.assert_close(torch.compile(program, backend="eager")(X), program(X))
    assert counters["regions"]["reused"] == len(steps)
