"""Which cases of a product `make test` runs; `make test-full` runs all."""

from __future__ import annotations

import collections
import json
import os
import zlib
from collections.abc import Hashable
from pathlib import Path

import pytest


EVERY = bool(os.environ.get("REGIONS_ALL_MODELS"))
# The rest of each test's cases; without it, `make test` runs those that differ most.
ALL = pytest.mark.skipif(not EVERY, reason="REGIONS_ALL_MODELS is not set")

# CPU seconds. Of a test function whose cases take longer in all, `make test` runs as many as this pays for, and two.
BUDGET = 20.0
# Test function that takes longer -> CPU seconds of one of its cases: `make test-times COSTS=1` writes this file.
COSTS = Path(__file__).with_name("costs.json")


def some(cases, by_default):
    """Parameters of a test: all ``cases``, of which those not in ``by_default`` run on request."""
    together = [case if isinstance(case, tuple) else (case,) for case in cases]
    wanted = [case if isinstance(case, tuple) else (case,) for case in by_default]
    return [pytest.param(*case, marks=() if case in wanted else ALL) for case in together]


def function_of(item):
    """The test function of a case, as a key."""
    return item.location[0], item.originalname


def by_function(items):
    """Test function -> its cases, but for those that are skipped outright."""
    cases = collections.defaultdict(list)
    for item in items:
        if not any(mark.args[:1] == (True,) for mark in item.iter_markers("skipif")):
            cases[function_of(item)].append(item)
    return cases


def _factors(item):
    """What a case takes of each list of parameters: the list's names, and the values by type, or without a hash by id."""
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if isinstance(mark.args[0], str) else ",".join(mark.args[0])
        values = [item.callspec.params[name.strip()] for name in names.split(",") if name.strip()]
        yield names, tuple((type(v), v if isinstance(v, Hashable) else id(v)) for v in values)


def name_of(function):
    """The name of a test function in ``COSTS``."""
    return "::".join(function)


def _with_each_value(cases):
    """Enough of ``cases`` that each value of each list of parameters occurs."""
    met, kept = set(), []
    for item in sorted(cases, key=lambda each: ("inductor" in each.nodeid, zlib.crc32(each.nodeid.encode()))):
        values = set(_factors(item))
        if not values or not values <= met:
            kept.append(item)
        met |= values
    return kept


def _within_budget(cases, seconds):
    """As many of ``cases`` as ``BUDGET`` pays for, two at least; the last one, which may be Inductor's, among them."""
    most = max(2, int(BUDGET / seconds)) if seconds else len(cases)
    return cases if len(cases) <= most else [*cases[: most - 1], cases[-1]]


def sampled(items):
    """What `make test` runs of ``items``, and the others.

    Of each test function's cases, enough that each value of each list of parameters occurs: a test of programs and
    backends runs each program and each backend, and not each program with each backend.  Fewer if they take longer than
    ``BUDGET``.  Cases that the C++ compiler takes part in are tried last.  Among the others, the order is that of a
    checksum of their names: it is the same in each process, and a new case does not change which of the others run.
    """
    costs = json.loads(COSTS.read_text())
    others = set()
    for function, cases in by_function(items).items():
        kept = _within_budget(_with_each_value(cases), costs.get(name_of(function)))
        others |= set(cases) - set(kept)
    return [item for item in items if item not in others], list(others)
