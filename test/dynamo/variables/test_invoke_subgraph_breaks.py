"""Marked and unmarked do the same: graph breaks and exceptions."""

import pytest
import torch
import torch._dynamo
from testing.marked_cases import Cases, check_case, ways


pytestmark = pytest.mark.usefixtures("bodies")
cases = Cases()


@cases
def a_print(mark):
    @mark
    def r(x):
        h = x.sin()
        print(end="")
        return h.cos()

    return lambda x, y, box, items, net: r(x * 2) + r(y * 2)


@cases
def an_explicit_graph_break(mark):
    @mark
    def r(x):
        h = x.sin()
        torch._dynamo.graph_break()
        return h.cos()

    return lambda x, y, box, items, net: r(x * 2) + r(y * 2)


@cases
def a_graph_break_in_a_nested_region(mark):
    @mark
    def inner(x):
        torch._dynamo.graph_break()
        return x.cos() + 1

    @mark
    def outer(x):
        return inner(x.sin()) * inner(x)

    return lambda x, y, box, items, net: outer(x * 2) + outer(y * 2)


@cases
def a_graph_break_between_two_regions(mark):
    @mark
    def r(x):
        return x.sin() + 1

    def f(x, y, box, items, net):
        h = r(r(x))
        torch._dynamo.graph_break()
        return r(r(h))

    return f


@cases
def an_item(mark):
    @mark
    def r(x):
        return x * x.detach().sum().item() + 1

    return lambda x, y, box, items, net: r(x) + r(y)


@cases
def a_data_dependent_branch(mark):
    @mark
    def r(x):
        return x.sin() if x.sum() > 0 else x.cos()

    return lambda x, y, box, items, net: r(x * 2) + r(y * 2)


@cases
def a_data_dependent_size(mark):
    @mark
    def r(x):
        return x[x > 0].sum() + x.nonzero().shape[1]

    return lambda x, y, box, items, net: r(x) + r(y)


@cases
def an_exception_caught_inside(mark):
    @mark
    def r(x, kw):
        try:
            h = x.sin() + 1
            return h * kw["missing"]
        except KeyError as e:
            return h * 2, str(e)

    return lambda x, y, box, items, net: (r(x, {}), r(y, {"missing": 3}))


@cases
def an_exception_caught_outside(mark):
    @mark
    def r(x, n):
        h = x.sin() + 1
        if n > 1:
            raise ValueError(f"n is {n}")
        return h

    def f(x, y, box, items, net):
        try:
            h = r(x, 1)
            h = r(h, 2)
        except ValueError as e:
            h = h * 2 + len(str(e))
        return r(h, 0)

    return f


@cases
def an_exception_that_nobody_catches(mark):
    @mark
    def r(x, n):
        h = x.sin() + 1
        if n > 1:
            raise ValueError(f"n is {n}")
        return h

    return lambda x, y, box, items, net: r(x, 1) + r(x, 2)


@cases
def an_error_of_an_operator(mark):
    @mark
    def r(x):
        return x.sin() @ torch.ones(3, 3)

    return lambda x, y, box, items, net: r(x)


@cases
def a_call_with_wrong_arguments(mark):
    @mark
    def r(x):
        return x.sin()

    return lambda x, y, box, items, net: r(x, y)


@cases
def an_assertion(mark):
    @mark
    def r(x):
        assert x.shape[0] == 4, "four rows"
        torch._check(x.shape[1] == 4)
        return x.sin() + 1

    return lambda x, y, box, items, net: r(x) + r(x[:2])[0]


@cases
def a_disabled_function(mark):
    @torch._dynamo.disable
    def hidden(x):
        return x.sin()

    @mark
    def r(x):
        return hidden(x * 2) + 1

    return lambda x, y, box, items, net: r(x) + r(y)


@ways
@pytest.mark.parametrize("name", cases)
def test_a_mark_changes_nothing(name, backend, fullgraph, training):
    check_case(cases[name], backend, fullgraph, training)
