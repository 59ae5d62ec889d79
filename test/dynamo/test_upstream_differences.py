"""What torch's own tests of these features are there for, where their text cannot hold: see UPSTREAM_TESTS.md."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch._dynamo
from torch._dynamo.regions.outcomes import Outcome, forget_outcomes, outcomes
from torch._dynamo.testing import AotEagerAndRecordGraphs, EagerAndRecordGraphs


region = torch.compiler.nested_compile_region
X = torch.linspace(0.1, 1, 16).view(4, 4)


@pytest.fixture(autouse=True)
def own_outcomes():
    torch._dynamo.reset()
    forget_outcomes()
    yield
    torch._dynamo.reset()
    forget_outcomes()


def called(program, *args) -> tuple[int, int]:
    """How many calls were traced and how many reused; the result is compared with eager's."""
    compiled = torch.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*args), program(*args))
    found = Counter(outcome.outcome for outcome in outcomes())
    assert found[Outcome.INLINED] == 0
    return found[Outcome.TRACED], found[Outcome.REUSED]


def scaled(x, factor=2.0, *, shift=None):
    y = (x.sin() * factor).cos() + x
    return y if shift is None else y + shift


class Holder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.factor = 2.0

    @region
    def forward(self, x):
        return self.linear(x).sin() * self.factor + x


def repeated(x):
    r = region(scaled)
    y = x.cos()
    return r(r(r(y)))


def by_keyword(x):
    r = region(scaled)
    y, z = x.cos(), x.tan()
    return r(r(y, shift=z), shift=z)


def other_constants(x):
    r = region(scaled)
    y = x.cos()
    return r(y, 1.0) + r(y, 2.0) + r(y, 3.0)


def other_shapes(x):
    r = region(scaled)
    y = x.cos()
    return r(y).sum() + r(y[:2].clone()).sum() + r(y.sin()).sum()


def pairs(x):
    r = region(lambda a, b: (scaled(a), b.exp() - a))
    pair = x.cos(), x.sin()
    for _ in range(3):
        pair = r(*pair)
    return pair[0] - pair[1]


def lists(x):
    r = region(lambda parts: sum(scaled(p) for p in parts))
    y, z = x.cos(), x.sin()
    return r([y, z]) + r([y, z, z.exp()]) + r([z, y])


def one_module(x, module=Holder()):
    y = x.cos() + module.linear.weight.sum()
    return module(module(y))


class Settings:
    factor = 2.0


def changed_attribute(x, settings=Settings()):
    settings.factor = 2.0
    r = region(lambda a: scaled(a, settings.factor))
    y = x.cos()
    first = r(y)
    settings.factor = 3.0
    return first + r(y)


@pytest.mark.parametrize(
    ("program", "traced", "reused"),
    [
        (repeated, 1, 2),
        (by_keyword, 1, 1),
        (other_constants, 3, 0),
        (other_shapes, 2, 1),
        (pairs, 1, 2),
        (lists, 2, 1),  # a list that the frame makes anew, of values in another order
        (one_module, 1, 1),
        (changed_attribute, 2, 0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_region_is_traced_once_for_calls_that_mean_the_same(program, traced, reused):
    """Upstream counts calls of stock's private tracer of bodies; the outcome of each call is what a user sees."""
    assert called(program, X) == (traced, reused)


def shares_inputs(x):
    return region(lambda a, b: (a + b).sin())(x, x) * 2


def returns_its_input(x):
    a, b = region(lambda a: (a, a.sin()))(x)
    return a + b


def returns_one_value_twice(x):
    def twice(a):
        y = a.sin()
        return y, y.view(16)

    a, b = region(twice)(x)
    return a, b + 1


def keeps_a_view(x):
    kept = []

    def r(a):
        y = a.sin()
        kept.append(y.view(16))
        return y + 1

    return region(r)(x) + kept[0].view(4, 4)


def breaks(x):
    def r(a):
        y = a.sin()
        torch._dynamo.graph_break()
        return y.cos()

    return region(r)(x) + region(r)(x + 1)


def writes_its_input(x):
    y = x.clone()

    def r(a):
        a.add_(1)
        return a.sin()

    return region(r)(y) + region(r)(y), y


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "program",
    [shares_inputs, returns_its_input, returns_one_value_twice, keeps_a_view, breaks, writes_its_input],
    ids=lambda program: program.__name__,
)
def test_what_stock_refuses_computes_what_eager_computes(program, backend, mode):
    """Upstream tests that stock raises: for aliases among inputs and outputs, graph breaks and writes in a region."""
    with getattr(torch, mode)():
        torch.testing.assert_close(torch.compile(program, backend=backend)(X), program(X))


def test_a_buffer_may_be_written_in_training():
    """Where no backward needs its old value: stock refuses each such write."""

    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4, 4))

        @region
        def forward(self, x):
            self.seen.add_(x.detach())
            return x.sin() * x

    def run(compiled):
        module, x = Counts(), X.clone().requires_grad_()
        f = torch.compile(lambda v: module(module(v)), backend="aot_eager") if compiled else lambda v: module(module(v))
        f(x).sum().backward()
        return module.seen, x.grad

    torch.testing.assert_close(run(True), run(False))


def test_more_variants_than_entries_are_no_error():
    r = region(scaled)

    def program(x):
        return sum(r(x, float(k)) for k in range(12)) + r(x, 0.0)

    torch.testing.assert_close(torch.compile(program, backend="eager", fullgraph=True)(X), program(X))


def test_a_result_that_one_call_does_not_use_has_no_part_in_its_gradient():
    """Two traced calls of which one leaves a result unused do not share a body that returns it.

    Autograd would give that result a gradient of zeros, and here zero times infinity would come back.
    """

    @region
    def r(x, y):
        return x.sin() + y, y.sqrt()

    def program(x, y):
        a, b = r(x, y)
        c, _ = r(a, y - y.detach())  # sqrt has no finite derivative at zero
        return c.sum() + b.sum()

    def grads(f):
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        f(x, y).backward()
        return x.grad, y.grad

    wanted = grads(program)
    assert all(torch.isfinite(g).all() for g in wanted)
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        torch.testing.assert_close(grads(torch.compile(program, backend=backend, fullgraph=True)), wanted)


def test_an_operand_that_is_saved_for_the_backward_is_taken_from_the_caller():
    """The caller has it: of a call only the results are used that are none of its operands."""
    backend = AotEagerAndRecordGraphs()

    @region
    def r(x, w):
        return (x * w).sin()

    x, w = X.clone().requires_grad_(), X.clone().requires_grad_()
    torch.compile(lambda a, b: r(r(a, b), b), backend=backend, fullgraph=True)(x, w).sum().backward()
    forward = backend.fw_graphs[0]
    calls = forward.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    assert len(calls) == 2
    assert [{user.args[1] for user in call.users} for call in calls] == [{0}, {0}]
    assert {x.name for x in forward.graph.find_nodes(op="placeholder")} <= {
        saved.name for saved in forward.graph.output_node().args[0]
    }
    u, v = X.clone().requires_grad_(), X.clone().requires_grad_()
    ((u * v).sin() * v).sin().sum().backward()
    torch.testing.assert_close((x.grad, w.grad), (u.grad, v.grad))


def test_random_numbers_of_a_region_are_those_of_the_program():
    """One mask, also in the backward, and the next number of the generator."""

    @region
    def r(x):
        return torch.nn.functional.dropout(x.sin() * x, 0.5).cos() + x

    def program(x):
        return r(r(x))

    def run(f):
        x = X.clone().requires_grad_()
        torch.manual_seed(3)
        y = f(x)
        y.sum().backward()
        return y.detach(), x.grad, torch.rand(())

    torch.testing.assert_close(run(torch.compile(program, backend="aot_eager", fullgraph=True)), run(program))


def bodies(program, *args) -> int:
    backend = EagerAndRecordGraphs()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        torch.compile(program, backend=backend, fullgraph=True)(*args)
    calls = backend.graphs[0].graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    return len({call.args[1] for call in calls})


@pytest.mark.parametrize(("blocks", "length", "expected"), [(2, 5, 0), (2, 3, 0), (4, 2, 0), (2, 12, 1), (6, 5, 1)])
def test_a_repeat_is_outlined_where_it_saves_operators(blocks, length, expected):
    """Upstream's programs are smaller than what is worth a call: the flag leaves them flat."""

    def program(x):
        for _ in range(blocks):
            for operator in (torch.sin, torch.cos, torch.tanh, torch.exp, torch.sigmoid, torch.relu)[: min(length, 6)]:
                x = operator(x)
            for _ in range(length - 6):
                x = x.neg()
        return x

    assert bodies(program, X) == expected


def test_equal_bodies_of_nested_regions_are_one():
    """A region that only calls another one is a call of that one's body, which returns what is used."""

    @region
    def inner(x):
        return torch.max(x, 0)

    @region
    def outer(x):
        _, index = inner(x)
        return index

    def program(x):
        _, index = inner(x)
        return index, outer(x)

    backend = EagerAndRecordGraphs()
    found = torch.compile(program, backend=backend, fullgraph=True)(X)
    torch.testing.assert_close(found, program(X))
    calls = backend.graphs[0].graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    assert len({call.args[1] for call in calls}) <= 1


def _copies(defaults=(2.0, 2.0, 2.0), shared=True):
    """Marked functions of one code."""
    one = [torch.full((), 0.5)]

    def make(default, held=one):
        def inner(x, factor=default, *, shift=3.0):
            return (x.sin() * factor).cos() + shift * held[0]

        return region(inner)

    if shared:
        return [make(default) for default in defaults]
    return [make(default, [torch.full((), float(k))]) for k, default in enumerate(defaults)]


def _all_of(functions):
    def program(x):
        for function in functions:
            x = function(x)
        return x

    return program


def _without_cells():
    def make():
        def inner(x):
            return (x.sin() * 2).cos() + x

        return region(inner)

    return [make() for _ in range(4)]


@pytest.mark.parametrize(
    ("functions", "traced", "reused"),
    [
        (_without_cells(), 1, 3),
        # Each has a cell of its own, whatever it holds.
        (_copies(), 3, 0),
        (_copies((1.0, 2.0, 1.0)), 3, 0),
        (_copies(shared=False), 3, 0),
    ],
    ids=["alike", "with cells", "with other defaults", "with other contents"],
)
def test_copies_of_one_function_are_one_region_where_they_are_alike_in_all_they_have(functions, traced, reused):
    # Not a view: the results of the calls are none, and a call sees whether its argument is one.
    assert called(_all_of(functions), X.clone()) == (traced, reused)


def test_a_copy_of_a_function_replaced_after_the_compile_is_another():
    functions = _without_cells()
    program = _all_of(functions)
    compiled = torch.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), program(X))

    def other(x):
        return (x.cos() * 3).sin()

    functions[2] = region(other)
    torch.testing.assert_close(compiled(X), program(X))
    functions[1].__closure__[0].cell_contents = other
    torch.testing.assert_close(compiled(X), program(X))
