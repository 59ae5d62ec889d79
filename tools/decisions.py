"""Prints what reuse decides about each thing that Dynamo's builder can meet, for the installed release.

    python tools/decisions.py

Three tables: kinds of guards (``trace/guard_facts.py``), kinds of sources (``trace/sources.py``), and the trackers that
the branches of ``VariableBuilder`` make (``trace/values.py``).  ``test_decisions.py`` fails when Dynamo has a
kind that is in none of them.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

import torch._dynamo
from torch._dynamo.regions.trace.guard_facts import GUARDS, GuardDecision
from torch._dynamo.regions.trace.sources import STEPS
from torch._dynamo.regions.trace.values import is_compared
from torch._dynamo.variables import builder
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lazy import LazyVariableTracker


def _kinds(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)


def _made_by_the_builder() -> set[type]:
    tree = ast.parse(inspect.getsource(builder.VariableBuilder))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return {kind for kind in _kinds(VariableTracker) if kind.__name__ in names} - {LazyVariableTracker}


def lines() -> Iterator[str]:
    yield f"# Decisions of reuse, torch {torch.__version__.partition('+')[0]}"
    yield from ("", "| guard | decision |", "|---|---|")
    for name, decision in sorted(GUARDS.items()):
        what = decision.value if isinstance(decision, GuardDecision) else "must hold, then is made at the new source"
        yield f"| {name} | {what} |"
    yield from ("", "| source | leads on from its base |", "|---|---|")
    for name, step in sorted((kind.__name__, step.name) for kind, step in STEPS.items()):
        yield f"| {name} | {step} |"
    yield from ("", "| tracker that a branch of the builder makes | decision |", "|---|---|")
    for name, compared in sorted({(kind.__name__, is_compared(kind)) for kind in _made_by_the_builder()}):
        yield f"| {name} | {'compared by object, guards and state' if compared else 'not reused: UNSUPPORTED_VALUE'} |"


if __name__ == "__main__":
    print("\n".join(lines()))
