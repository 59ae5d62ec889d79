"""What can be marked as a region, and what a mark leaves as it was."""

import functools
import inspect
import pickle
import sys

import pytest
import torch
import torch.nn.functional as F
from testing.marked_cases import became, compiled
from torch._dynamo.regions.outcomes import outcomes
from torch._dynamo.testing import CompileCounter


region = torch.compiler.nested_compile_region
X = torch.arange(16.0).view(4, 4) / 16
pytestmark = pytest.mark.usefixtures("bodies")


@region
def module_level(x, /, scale=2.0, *rest, offset=1.0, **more):
    """The docstring."""
    return (x * scale + offset).sin()


def plain(x, /, scale=2.0, *rest, offset=1.0, **more):
    """The docstring."""
    return (x * scale + offset).sin()


class Methods:
    """Has each kind of method, marked above and below the decorator that makes it."""

    factor = 3.0

    def __init__(self):
        self.weight = torch.ones(4) * 2

    @region
    def bound(self, x):
        return x * self.weight + 1

    @region
    @staticmethod
    def static_above(x):
        return x.sin() + 2

    @staticmethod
    @region
    def static_below(x):
        return x.sin() + 3

    @region
    @classmethod
    def class_above(cls, x):
        return x.cos() * cls.factor

    @classmethod
    @region
    def class_below(cls, x):
        return x.cos() + cls.factor

    @property
    @region
    def computed(self):
        return self.weight.sin() + 1

    def __call__(self, x):
        return x * self.weight - 1


class Slotted:
    __slots__ = ("weight",)

    def __init__(self):
        self.weight = torch.ones(4) * 2

    def __call__(self, x):
        return x * self.weight + 1


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x).relu() + x


METHODS = Methods()
MARKABLE = {
    "function": plain,
    "lambda": lambda x: x.sin() + 1,
    "bound method": METHODS.__call__,
    "static method of an instance": METHODS.static_below,
    "partial": functools.partial(plain, scale=3.0),
    "partial of a partial": functools.partial(functools.partial(plain, offset=0.5), scale=3.0),
    "callable object": METHODS,
    "callable object with slots": Slotted(),
    "module": Block(),
    "builtin": torch.sin,
    "torch function": F.softplus,
    "marked function": region(plain),
    "partial of a marked function": functools.partial(region(plain), scale=3.0),
}


@pytest.mark.parametrize("kind", MARKABLE)
def test_a_callable_can_be_marked(kind):
    function = MARKABLE[kind]
    marked = region(function)
    torch.testing.assert_close(marked(X), function(X))
    assert outcomes() == []  # outside torch.compile the mark does nothing
    torch.testing.assert_close(compiled(lambda x: marked(x) + marked(x), X), function(X) * 2)
    assert "TRACED" in became()


@pytest.mark.parametrize("name", ["bound", "static_above", "static_below", "class_above", "class_below"])
def test_a_method_can_be_marked_above_and_below_its_decorator(name):
    on_the_instance = getattr(METHODS, name)
    expected = on_the_instance(X)
    torch.testing.assert_close(compiled(lambda x: on_the_instance(x), X), expected)
    if name.startswith(("static", "class")):
        torch.testing.assert_close(compiled(lambda x: getattr(Methods, name)(x), X), expected)
    assert set(became()) == {"TRACED"}


def test_a_property_may_be_made_of_a_marked_function():
    torch.testing.assert_close(compiled(lambda x: x + METHODS.computed, X), X + METHODS.weight.sin() + 1)
    assert became() == ["TRACED"]


def test_a_mark_may_be_written_with_parentheses():
    marked = region()(plain)
    torch.testing.assert_close(compiled(lambda x: marked(x), X), plain(X))
    assert became() == ["TRACED"]


def generator(x):
    yield x.sin()


async def coroutine(x):
    return x.sin()


async def async_generator(x):
    yield x.sin()


@pytest.mark.parametrize(
    "function",
    [generator, coroutine, async_generator, functools.partial(generator)],
    ids=["generator", "coroutine", "async_generator", "partial"],
)
def test_what_runs_piecemeal_is_left_unmarked_with_a_warning(function):
    with pytest.warns(UserWarning, match="run a piece at a time"):
        assert region(function) is function


@pytest.mark.parametrize("value", [3, "name", X, [plain], property(plain)], ids=lambda v: type(v).__name__)
def test_what_is_not_callable_cannot_be_marked(value):
    with pytest.raises(TypeError, match="marks a callable"):
        region(value)


def test_signature_name_and_docstring_survive():
    marked = region(plain)
    assert inspect.signature(marked) == inspect.signature(plain)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        assert getattr(marked, name) == getattr(plain, name)
    assert inspect.signature(Methods.bound).parameters.keys() == {"self", "x"}


def test_pickling_survives():
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert pickle.loads(pickle.dumps(METHODS.bound)).__func__ is Methods.bound
    assert pickle.loads(pickle.dumps(functools.partial(module_level, scale=3.0))).func is module_level


def test_marking_changes_nothing_of_the_function():
    before = dict(vars(plain))
    region(plain)
    assert vars(plain) == before


def test_marking_an_object_leaves_its_attributes_alone():
    block = Block()
    names = list(vars(block))
    marked = region(block)
    assert list(vars(block)) == names
    assert not hasattr(marked, "_parameters")


def test_outside_torch_compile_a_mark_costs_one_frame_and_two_questions():
    marked = region(plain)
    seen = []

    def profile(frame, event, arg):
        if event == "call":
            seen.append(frame.f_code.co_name)
        elif event == "c_call":
            seen.append(arg.__name__)

    sys.setprofile(profile)
    try:
        marked(3)
    except AttributeError:
        pass  # an int has no sin
    finally:
        sys.setprofile(None)
    assert seen[:4] == ["region", "is_dynamo_compiling", "is_exporting", "plain"]
    assert len(seen) <= 5  # and the call that switches the profile off


@pytest.mark.parametrize("kind", MARKABLE)
def test_a_marked_callable_can_be_compiled_by_itself(kind):
    function = MARKABLE[kind]
    counter = CompileCounter()
    torch.testing.assert_close(torch.compile(region(function), backend=counter, fullgraph=True)(X), function(X))
    assert counter.frame_count == 1
