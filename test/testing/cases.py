"""Which cases of a product `make test` runs; `make test-full` runs all."""

from __future__ import annotations

import collections
import os
import zlib
from collections.abc import Hashable

import pytest


EVERY = bool(os.environ.get("REGIONS_ALL_MODELS"))
# The rest of each test's cases; without it, `make test` runs those that differ most.
ALL = pytest.mark.skipif(not EVERY, reason="REGIONS_ALL_MODELS is not set")


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


def with_each_value(items):
    """Of each test function's cases, enough that each value of each list of parameters occurs: (those, the others).

    A test of programs and backends runs each program and each backend, and not each program with each backend.  The
    order in which cases are tried is that of a checksum of their names: it is the same in each process, and a new case
    does not change which of the others run.
    """
    others = set()
    for cases in by_function(items).values():
        met = set()
        for item in sorted(cases, key=lambda each: zlib.crc32(each.nodeid.encode())):
            values = set(_factors(item))
            if values and values <= met:
                others.add(item)
            met |= values
    return [item for item in items if item not in others], list(others)
