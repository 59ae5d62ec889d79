"""Faults, seeded by patching the overlay, that the fuzzer must find.

One context manager a fault; each names the one place that it patches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch._dynamo.convert_frame  # (Dynamo is imported before a part of it is)
from torch._dynamo.regions import keys
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.trace import built, call, lookup, recipe, stamp
from torch._dynamo.regions.trace.guard_facts import GuardFact
from torch._functorch._aot_autograd import autograd_cache_parts
from torch.utils import _ambient_state


Fault = Callable[[], contextlib.AbstractContextManager[Any]]


def constant_dropped_from_the_node_key() -> Any:
    """Operators that differ in a float are one."""
    return mock.patch.object(keys, "_number_key", lambda number: (type(number),))


def observation_dropped() -> Any:
    """The constants that tracing found behind an argument are not compared."""
    holds = GuardFact.holds
    return mock.patch.object(
        GuardFact, "holds", lambda fact, value: fact.kind in ("EQUALS_MATCH", "CONSTANT_MATCH") or holds(fact, value)
    )


def _without(keep: Callable[[Any, Any], bool]) -> Any:
    stock = lookup.substituted_guards
    patched = lambda match: [(s, make) for s, make in stock(match) if keep(s, make)]  # noqa: E731
    return mock.patch.object(stamp, "substituted_guards", patched)


def _kind(make: Any) -> str:
    return getattr(getattr(make, "func", make), "__name__", "")


@contextlib.contextmanager
def substituted_guard_skipped() -> Iterator[None]:
    """A reused call makes none of the traced call's guards at its own sources, but those on aliases.

    Numbers are guarded where they are built, too.
    """
    with (
        _without(lambda source, make: _kind(make) == "DUPLICATE_INPUT"),
        mock.patch.object(built, "_build_constants", lambda tx, actions, sources: None),
    ):
        yield


def alias_guard_skipped() -> Any:
    """A reused call does not guard that two sources are one object."""
    return _without(lambda source, make: _kind(make) != "DUPLICATE_INPUT")


def identity_replaced_by_equality() -> Any:
    """Objects that are equal, as dataclasses, named tuples and enum members are, stand for one another."""

    def alike(checks: Any, bindings: list[Any], unmoved: Any, actions: Any) -> None:
        steps = checks.plan.steps
        pairs = [(bindings[i].value, steps[i].old) for i in checks.unmoved]
        pairs += [(bindings[i].value, bindings[j].value) for i, j in checks.same]
        if any(type(a) is not type(b) or a != b for a, b in pairs if not isinstance(a, torch.Tensor)):
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, "an object that is not equal")

    return mock.patch.object(lookup, "_check_identities", alike)


@contextlib.contextmanager
def autocast_states_merged() -> Iterator[None]:
    """Operators and calls under two kinds of autocast are one.

    A call's key has the dtypes twice: in the state of its operators, and for a program that asks for them.
    """
    with (
        mock.patch.object(_ambient_state, "_autocasts", lambda: ()),
        mock.patch.object(call, "autocast_dtypes", lambda: ()),
    ):
        yield


@contextlib.contextmanager
def field_dropped_from_the_cache_key() -> Iterator[None]:
    """The graph is not in the key of AOTAutogradCache, only what goes into it."""
    add = autograd_cache_parts.KeyParts.add

    def without_graph(self: Any, name: str, content: bytes) -> None:
        add(self, name, b"" if name == "graph" else content)

    with mock.patch.object(autograd_cache_parts.KeyParts, "add", without_graph):
        yield


def write_not_carried_over() -> Any:
    """What a call writes to objects is not written by one that reuses it."""
    return mock.patch.object(stamp, "carry_out", lambda maker, effects: None)


def results_read_when_stamped() -> Any:
    """A call that is reused returns what the traced call's result is by then."""
    examples_of = recipe.examples_of
    return mock.patch.object(recipe, "examples_of", lambda tx, values, taken: examples_of(tx, values, taken) and values)


# fault -> the backend that shows it, and within how many programs it is found.
FAULTS: dict[Fault, tuple[str, int]] = {
    constant_dropped_from_the_node_key: ("eager", 300),
    observation_dropped: ("eager", 300),
    substituted_guard_skipped: ("eager", 300),
    alias_guard_skipped: ("eager", 1500),
    identity_replaced_by_equality: ("eager", 300),
    autocast_states_merged: ("eager", 6000),
    field_dropped_from_the_cache_key: ("inductor", 60),
    write_not_carried_over: ("eager", 1500),
    results_read_when_stamped: ("eager", 3000),
}
