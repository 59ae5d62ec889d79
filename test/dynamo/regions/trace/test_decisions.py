"""Each kind of guard, source and value that Dynamo has is decided about: a torch release that adds one fails here."""

import ast
import importlib
import inspect
import pkgutil

import pytest
import torch._dynamo
from torch._dynamo import guards, source
from torch._dynamo.regions.trace.guard_facts import GUARDS
from torch._dynamo.regions.trace.sources import STEPS
from torch._dynamo.regions.trace.values import REFUSED, VALUES, is_compared
from torch._dynamo.variables import builder
from torch._dynamo.variables.base import VariableTracker
from torch._guards import Source
from torch.utils._release import RELEASE


def _subclasses(kind):
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _guard_kinds():
    for name in dir(guards.GuardBuilder):
        method = getattr(guards.GuardBuilder, name)
        if name.isupper() and callable(method):
            parameters = list(inspect.signature(method).parameters)
            if parameters[1:2] == ["guard"]:
                yield name


def test_every_kind_of_guard_has_a_decision():
    assert set(_guard_kinds()) == set(GUARDS)


def test_every_kind_of_source_has_a_decision():
    kinds = {kind for kind in _subclasses(Source) if kind.__module__ == source.__name__}
    assert kinds == set(STEPS)


def _made_by_the_builder():
    """Names of the tracker classes that the builder's branches make."""
    tree = ast.parse(inspect.getsource(builder.VariableBuilder))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    known = {kind.__name__ for kind in _subclasses(VariableTracker)} - {"LazyVariableTracker"}  # of one of the others
    return sorted(names & known)


@pytest.mark.parametrize("name", _made_by_the_builder())
def test_every_branch_of_the_builder_has_a_decision(name):
    kind = next(kind for kind in _subclasses(VariableTracker) if kind.__name__ == name)
    bases = {base.__name__ for base in kind.__mro__}
    assert bases & (VALUES | REFUSED), f"decide in regions/trace/values.py what reuse does about a {name}"


def _branches():
    """The tests of the builder's branches, as text: what each of them is about is decided by name above."""
    tree = ast.parse(inspect.getsource(builder.VariableBuilder))
    wrap = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_wrap")
    return sum(isinstance(node, ast.If) for node in ast.walk(wrap))


def test_the_builder_has_the_branches_that_were_decided_about():
    expected = {"2.13.0": 143, "2.15.0": 156}
    release = torch.__version__.partition("+")[0]
    assert _branches() == expected[release], "read the new branches of VariableBuilder._wrap, then decide"


# Made by tracing, never by the builder of what stands at a source.
MADE_BY_TRACING = {
    *("AutogradFunctionApplyVariable", "DataPtrVariable", "DeletedVariable", "FakeIdVariable", "FrameSummaryVariable"),
    *("LazyVariableTracker", "NullVariable", "TMADescriptorExperimentalVariable", "TMADescriptorStableVariable"),
    *("TorchFunctionModeStackVariable", "TracebackVariable", "UnknownVariable", "WithEnterFunctionVariable"),
    "WithExitFunctionVariable",
}
if RELEASE >= (2, 15):
    MADE_BY_TRACING |= {"CallMethodVariable", "ComputedLazyConstantVariable", "DescriptorVariable"}
    MADE_BY_TRACING |= {"OptimizerCapturableVariable"}


def test_every_kind_of_tracker_has_a_decision():
    """The lookup rules name kinds that the builder's text does not: `enumerate` had none, and no block was reused."""
    for module in pkgutil.iter_modules(torch._dynamo.variables.__path__):
        importlib.import_module(f"torch._dynamo.variables.{module.name}")
    stock = {kind for kind in _subclasses(VariableTracker) if kind.__module__.startswith("torch._dynamo.variables.")}
    undecided = {kind.__name__ for kind in stock if not {base.__name__ for base in kind.__mro__} & (VALUES | REFUSED)}
    assert undecided == MADE_BY_TRACING


def test_names_that_were_decided_about_are_those_of_trackers():
    known = {kind.__name__ for kind in _subclasses(VariableTracker)}
    assert VALUES | REFUSED <= known
    assert not VALUES & REFUSED


def test_what_was_not_decided_about_is_not_compared():
    class UnheardOfVariable(VariableTracker):
        pass

    assert not is_compared(UnheardOfVariable)
    assert not is_compared(
        type("Refused", (next(k for k in _subclasses(VariableTracker) if k.__name__ in REFUSED),), {})
    )
