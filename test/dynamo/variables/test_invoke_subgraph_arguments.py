"""Marked and unmarked do the same: arguments, captured values, regions in regions."""

import pytest
import torch
from testing.marked_cases import Cases, check_case, ways
from testing.observing import Pair


pytestmark = pytest.mark.usefixtures("bodies")
cases = Cases()


# Arguments


@cases
def defaults_and_keywords(mark):
    @mark
    def r(x, y=None, *rest, scale=2.0, **kw):
        h = x * scale if y is None else x @ y
        return sum(rest, h) + kw.get("extra", 1)

    def f(x, y, box, items, net):
        return r(x), r(x, y), r(x, y, x, y), r(x=x, scale=3.0), r(y=y, x=x, extra=x.sum()), r(*items, scale=4.0)

    return f


@cases
def a_default_that_is_a_tensor_or_a_list(mark):
    weight, seen = torch.ones(4), []

    @mark
    def r(x, weight=weight, *, seen=seen):
        seen.append(1)
        return x * weight * len(seen)

    return lambda x, y, box, items, net: (r(x), r(x), seen)


@cases
def containers_objects_and_modules_as_arguments(mark):
    @mark
    def r(pair, box, items, kw, net):
        return net.lin(pair.a * box.value) + items[0] + kw["z"] * kw["n"]

    return lambda x, y, box, items, net: r(Pair(x, y), box, items, {"z": y, "n": 2}, net)


@cases
def the_same_argument_twice(mark):
    @mark
    def r(a, b):
        return a.sin() * b

    return lambda x, y, box, items, net: (r(x, x), r(x, y), r(y, y.t()))


@cases
def constants_of_every_kind(mark):
    @mark
    def r(x, c):
        return x * 2 if c is None else x.to(c) if isinstance(c, torch.dtype) else x * float(c)

    def f(x, y, box, items, net):
        return [r(x, c) for c in (None, torch.float64, 1, 1.0, True, -0.0, "2.5", float("inf"))]

    return f


@cases
def a_function_as_argument(mark):
    @mark
    def r(g, x):
        return g(x) + 1

    return lambda x, y, box, items, net: (r(torch.sin, x), r(lambda t: t * y, x), r(net, x))


@cases
def integers_that_change_from_call_to_call(mark):
    @mark
    def r(x, n):
        return x.sin() * n + x.shape[0]

    def f(x, y, box, items, net):
        box.n += 1
        return r(x, box.n) + r(x[: box.n], box.n).sum()

    return f


# Closures


@cases
def closures_over_tensors_and_values(mark):
    w, scale, names = torch.ones(4, 4), 2.5, ["a", "b"]

    @mark
    def r(x):
        return (x @ w) * scale * len(names)

    return lambda x, y, box, items, net: r(x) + r(x.sin())


@cases
def a_closure_made_in_the_compiled_function(mark):
    def f(x, y, box, items, net):
        outs = []
        for k in range(3):

            @mark
            def r(t):
                return t.sin() * k + y

            outs.append(r(x))
        return outs

    return f


@cases
def nonlocal_variables_are_written(mark):
    count, last = 0, None

    @mark
    def r(x):
        nonlocal count, last
        count += 1
        last = x.sin() * count
        return x + count

    return lambda x, y, box, items, net: (r(x), r(x), count, last)


# Nested and recursive


@cases
def nested_regions(mark):
    @mark
    def inner(x):
        return x.sin() + 1

    @mark
    def outer(x, y):
        return inner(inner(x) * y).cos()

    return lambda x, y, box, items, net: outer(x, y) + outer(y, x) + inner(x)


@cases
def a_region_that_calls_itself(mark):
    @mark
    def r(x, depth):
        return x.cos() if depth == 0 else r(x.sin() * depth, depth - 1) + 1

    return lambda x, y, box, items, net: r(x, 3) + r(y, 2)


@cases
def a_region_in_a_comprehension_and_a_generator(mark):
    @mark
    def r(x, k):
        return x * k + x.sin()

    def pieces(x):
        for k in range(3):
            yield r(x, k)

    return lambda x, y, box, items, net: ([r(x, k) for k in range(2)], sum(pieces(x)), list(map(r, items, (1, 2))))


@ways
@pytest.mark.parametrize("name", cases)
def test_a_mark_changes_nothing(name, backend, fullgraph, training):
    check_case(cases[name], backend, fullgraph, training)
