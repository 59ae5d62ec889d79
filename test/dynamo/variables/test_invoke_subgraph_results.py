"""Marked and unmarked do the same: results of any kind, and what becomes of them."""

import collections
import functools

import pytest
import torch
from testing.marked_cases import Cases, check_case, ways
from testing.observing import Box, Pair, Point, tensors


pytestmark = pytest.mark.usefixtures("bodies")
cases = Cases()


RESULTS = {
    "dict": lambda h, x, y: {"a": h, "b": [h * 2], 3: None},
    "ordered_dict": lambda h, x, y: collections.OrderedDict(a=h, b=h * 2),
    "dataclass": lambda h, x, y: Pair(h, Pair(h * 2, 1)),
    "named_tuple": lambda h, x, y: Point(h, None),
    "user_object": lambda h, x, y: Box(h),
    "none": lambda h, x, y: None,
    "int": lambda h, x, y: 3,
    "float_bool_str": lambda h, x, y: (1.5, True, "s"),
    "dtype_and_shape": lambda h, x, y: (h.dtype, h.shape),
    "the_input": lambda h, x, y: x,
    "input_and_result": lambda h, x, y: (x, h, y),
    "same_value_twice": lambda h, x, y: (h, h, [h]),
    "view_of_result": lambda h, x, y: (h, h.view(16), h[0], h.t()),
    "view_of_input": lambda h, x, y: (x.view(16), x[1:], y.t()),
    "view_of_a_view_only": lambda h, x, y: (h.view(2, 8).t(),),
    "generator": lambda h, x, y: (t * 2 for t in (h, x)),
    "function": lambda h, x, y: lambda: h * 2,
    "partial": lambda h, x, y: functools.partial(torch.add, h, 1),
    "detached": lambda h, x, y: (h, h.detach(), h > 0, h.argmax()),
    "scalar": lambda h, x, y: (h.sum(), h.mean(0)),
    "set_and_slice": lambda h, x, y: ({1, 2}, slice(1, 2), range(3), h),
    "chunks": lambda h, x, y: h.chunk(2),
    "max": lambda h, x, y: h.max(0),
    "complex": lambda h, x, y: torch.complex(h, x),
}


def consume(out):
    """Uses a region's result outside, as far as that is possible."""
    if callable(out):
        return out()
    return [t * 2 for t in tensors(out)] or out


for _name, _make in RESULTS.items():

    def _of_result(mark, make=_make):
        @mark
        def r(x, y):
            return make((x @ y).sin(), x, y)

        def f(x, y, box, items, net):
            h = x * 1
            return consume(r(h, y)), r(x, y) if make is not RESULTS["generator"] else None

        return f

    cases[f"result_{_name}"] = _of_result


@cases
def a_captured_value_is_returned(mark):
    w = torch.ones(4, 4)

    @mark
    def r(x):
        return w, (x @ w).sin(), w.t()

    return lambda x, y, box, items, net: (r(x), r(y))


@cases
def a_result_is_written_later(mark):
    @mark
    def r(x):
        h = x.sin()
        return h, h * 2, h.view(16)

    def f(x, y, box, items, net):
        a, b, v = r(x)
        b.add_(1)
        b.mul_(a)
        c, d, u = r(y)
        u.add_(2)
        return a, b, c, d, u, c.cos()

    return f


@cases
def an_input_is_written_after_the_call(mark):
    @mark
    def r(x):
        return x.sin(), x.view(16), x

    def f(x, y, box, items, net):
        s, v, same = r(y)
        y.add_(1)
        return s, v * 2, same * 3

    return f


@ways
@pytest.mark.parametrize("name", cases)
def test_a_mark_changes_nothing(name, backend, fullgraph, training):
    check_case(cases[name], backend, fullgraph, training, gives_up=name == "result_generator")


def _in_a_row(body, read=lambda x, k: x, n=4):
    @torch.compiler.nested_compile_region
    def marked(x):
        return body(x)

    def f(x):
        for k in range(n):
            x = read(marked(x), k)
        return x

    return f


def _gives_attribute(x, k):
    x.given = 2.0 + k
    return x * x.given


def test_a_result_of_a_reused_call_takes_attributes():
    """Without a break: Dynamo tracks it as the new object that it would be when traced."""
    f, x = _in_a_row(torch.sin, _gives_attribute), torch.randn(4)
    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(x), f(x))
    assert torch._dynamo.utils.counters["regions"]["reused"]


def test_an_attribute_that_the_frame_gave_an_argument_is_seen():
    def give(x, k):
        if k % 2:
            x.given = 2.0
        return x

    f, x = _in_a_row(lambda x: x.sin() * getattr(x, "given", 1.0), give), torch.randn(4)
    with torch._dynamo.config.patch(verify_region_reuse=True):
        torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(x), f(x))


@pytest.mark.parametrize("at", [1, 3])
def test_a_view_that_a_reused_call_returns_to_the_user_is_flats(at):
    """AOTAutograd makes a tensor of its own of it; out of a body, the user would get a view."""
    f = _in_a_row(lambda x: x.sin().view(-1).view(2, 3), n=at + 1)

    def run(fn):
        torch._dynamo.reset()
        x = torch.ones(2, 3).requires_grad_()
        return torch.compile(fn, backend="aot_eager", fullgraph=True)(x * 1)._is_view()

    flat = run(lambda x: [x := x.sin().view(-1).view(2, 3) for _ in range(at + 1)][-1])
    assert run(f) == flat
