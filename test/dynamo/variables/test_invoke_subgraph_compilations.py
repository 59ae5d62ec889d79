"""A marked function is traced and recompiled as often as an unmarked one."""

import collections

import pytest
import torch
import torch._dynamo
from testing.marked_cases import compiled, unmarked
from torch._dynamo.regions.outcomes import outcomes
from torch._dynamo.symbolic_convert import InliningInstructionTranslator
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch._dynamo.utils import counters


region = torch.compiler.nested_compile_region
X = torch.arange(16.0).view(4, 4) / 16
pytestmark = pytest.mark.usefixtures("bodies")


# Cost


def inlined_names(f, backend="eager"):
    """How often Dynamo inlines each function while it compiles ``f``."""
    seen = collections.Counter()
    stock = InliningInstructionTranslator.inline_call.__func__

    def counting(cls, parent, func, *args, **kwargs):
        seen[func.get_name()] += 1
        return stock(cls, parent, func, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InliningInstructionTranslator, "inline_call", classmethod(counting))
        compiled(f, X, fullgraph=False)
    return seen


def helper(x):
    return x.cos()


@pytest.mark.parametrize(
    ("name", "body"),
    {
        "traced": lambda x: helper(x.sin()) + 1,
        "no operators": lambda x: (helper(x), x)[1],
        "nothing inside its boundary": lambda x: (helper(x).sum(), x.view(16))[1],
        "random": lambda x: torch.rand_like(helper(x)),
    }.items(),
)
def test_a_body_is_traced_at_most_once_a_call(name, body):
    marked = region(body)
    seen = inlined_names(lambda x: (marked(x), marked(x), marked(x)))
    assert seen["helper"] == 3 - counters["regions"]["reused"]
    assert len(outcomes()) == 3


@pytest.mark.parametrize(
    ("name", "body"),
    {
        "graph break": lambda x: (helper(x), torch._dynamo.graph_break(), helper(x))[2],
        "item": lambda x: helper(x) * helper(x).sum().item(),
    }.items(),
)
def test_a_region_that_breaks_is_traced_as_often_as_the_function(name, body):
    flat = inlined_names(lambda x: body(x) + body(x))["helper"]
    torch._dynamo.reset()
    marked = region(body)
    assert inlined_names(lambda x: marked(x) + marked(x))["helper"] == flat > 0


# Recompiles, and marks behind a graph break


def test_marks_behind_a_graph_break_do_not_share_a_recompile_limit():
    def make(k):
        def r(x):
            torch._dynamo.graph_break()
            return x * k + x.sin()

        return r

    functions = [make(k) for k in range(12)]
    for k, function in enumerate(functions):  # a code each, as functions that are written out have
        function.__code__ = function.__code__.replace(co_firstlineno=1000 + k)
    counts = []
    for mark in (unmarked, region):
        torch._dynamo.reset()
        marked = [mark(function) for function in functions]
        counter = CompileCounter()

        def f(x):
            for function in marked:
                x = function(x)
            return x

        torch.compile(f, backend=counter)(X)
        counts.append((counter.frame_count, counter.op_count))
    assert counts[0] == counts[1]
    assert counts[0][0] == 12


def test_sizes_that_change_recompile_as_often_as_without_the_mark():
    def body(x, n):
        return x.sin() * n + x.shape[0]

    counts = []
    for mark in (unmarked, region):
        torch._dynamo.reset()
        r = mark(body)
        counter = CompileCounterWithBackend("eager")
        g = torch.compile(lambda x, n: r(x, n) + r(x * 2, n), backend=counter)
        after = []
        for size, n in ((4, 1), (5, 1), (6, 1), (6, 2), (7, 3), (1, 3)):
            torch.testing.assert_close(
                g(torch.ones(size), n), body(torch.ones(size), n) + body(torch.ones(size) * 2, n)
            )
            after.append(counter.frame_count)
        counts.append(after)
    assert counts[0] == counts[1]
    assert counts[0][-1] > 1


@pytest.mark.parametrize(
    "calls", [lambda r, x, y: r(x, y), lambda r, x, y: r(r(r(x, y), y), y)], ids=["traced", "reused"]
)
def test_an_argument_that_the_body_does_not_read_is_not_guarded(calls):
    def body(x, y):
        return x.sin() + 1

    counts = []
    for mark in (unmarked, region):
        torch._dynamo.reset()
        r = mark(body)
        counter = CompileCounter()
        f = torch.compile(lambda x, y: calls(r, x, y), backend=counter)
        f(X, torch.ones(4, 2))
        f(X, torch.ones(4, 2).t())
        counts.append(counter.frame_count)
    assert counts == [1, 1]


class Part:
    """An object with parts, as a layer of a model has them."""

    def __init__(self, **parts):
        self.__dict__.update(parts)


def compiles_after(make, changes):
    """For the marked and the unmarked body: how often was compiled after the first call and after each change."""
    counts = []
    for mark in (unmarked, region):
        torch._dynamo.reset()
        counters.clear()
        body, parts = make()
        marked = mark(body)
        counter = CompileCounterWithBackend("eager")

        def program(x, marked=marked, parts=parts):
            for part in parts:
                x = marked(part, x)
            return x

        run = torch.compile(program, backend=counter)
        after = []
        for change in (lambda parts: None, *changes):
            change(parts)
            wanted = X
            for part in parts:
                wanted = body(part, wanted)
            torch.testing.assert_close(run(X), wanted)
            after.append(counter.frame_count)
        counts.append(after)
    assert counters["regions"]["reused"] > 0
    return counts


def numbered(body):
    return lambda: (body, [Part(k=7, inner=Part(k=3)) for _ in range(4)])


def all_to(k):
    def change(parts):
        for part in parts:
            part.k = part.inner.k = k

    return change


def one_to(i, k):
    def change(parts):
        parts[i].k = k

    return change


def read_by_the_body(part, x):
    return x.sin() * part.k


def read_by_a_function_of_the_body(part, x):
    def deep(inner):
        return inner.k + 1

    return x.sin() * deep(part.inner) + deep(part)


@pytest.mark.parametrize("body", [read_by_the_body, read_by_a_function_of_the_body], ids=lambda b: b.__name__)
def test_numbers_behind_reused_arguments_turn_dynamic_as_without_the_mark(body):
    changes = [all_to(8), all_to(9), all_to(10), one_to(2, 11), one_to(3, 12), one_to(0, 13)]
    flat, marked = compiles_after(numbered(body), changes)
    assert marked == flat
    assert flat[-1] > flat[0]


def test_sizes_behind_reused_arguments_turn_dynamic_as_without_the_mark():
    def weigh(x, w):
        return x.sin() * w.sum()

    def body(part, x):
        return weigh(x, part.w)

    def resize(size):
        def change(parts):
            for part in parts:
                part.w = torch.ones(size)

        return change

    flat, marked = compiles_after(
        lambda: (body, [Part(w=torch.ones(3)) for _ in range(4)]), [resize(4), resize(5), resize(6)]
    )
    assert marked == flat
    assert flat[-1] > flat[0]


def test_objects_that_reused_calls_share_are_guarded_to_be_one():
    def make():
        shared = Part(k="a")
        return lambda part, x: x.sin() if part.inner.k == "a" else x.cos(), [
            Part(inner=Part(k="a")),
            Part(inner=shared),
            Part(inner=shared),
            Part(inner=Part(k="a")),
        ]

    def part_them(parts):
        parts[2].inner = Part(k="a")

    def rename(parts):
        parts[1].inner.k = "b"

    flat, marked = compiles_after(make, [part_them, rename])
    assert marked == flat == [1, 2, 3]


def test_lists_and_tensors_that_reused_calls_share_are_guarded_to_be_one():
    def make():
        names, w = ["a", "b"], torch.ones(4)
        each = [(["a", "b"], torch.ones(4)), (names, w), (names, w), (["a", "b"], torch.ones(4))]
        return lambda part, x: x * part.w if "a" in part.names else x, [Part(names=n, w=w) for n, w in each]

    def part_lists(parts):
        parts[2].names = ["a", "b"]

    def part_tensors(parts):
        parts[2].w = torch.ones(4)

    flat, marked = compiles_after(make, [part_lists, part_tensors])
    assert marked == flat == [1, 2, 3]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_floats_turn_dynamic_as_without_the_mark(backend):
    def body(part, x, k):
        return (x * part.k).sin() + k

    counts = []
    for mark in (unmarked, region):
        torch._dynamo.reset()
        marked, counter = mark(body), CompileCounterWithBackend(backend)
        parts = [Part(k=0.5 + i) for i in range(3)]

        def f(x, k, marked=marked, parts=parts):
            for part in parts:
                x = marked(part, x, k)
            return x

        run = torch.compile(f, backend=counter, fullgraph=True)
        for step in range(4):
            for i, part in enumerate(parts):
                part.k = 0.5 + i + 0.1 * step
            torch.testing.assert_close(run(X, 0.1 + step), f(X, 0.1 + step))
        counts.append(counter.frame_count)
    assert counts[0] == counts[1] > 1
