"""A plugin of pytest: CPU seconds of each test file, processes that a test started and ended included.

``make test-times`` uses it, in one process; with ``CASES=1`` it runs one case of each test function and reckons with
that for the others.  Wall time of a shared machine says nothing.
"""

from __future__ import annotations

import collections
import os

import pytest
from testing.cases import by_function, function_of


_CASES = int(os.environ.get("CASES", "0"))
_spent: collections.defaultdict[str, float] = collections.defaultdict(float)
# Test function -> how many cases one that runs stands for
_weight: dict[tuple[str, str], float] = {}


def _now():
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    if not _CASES:
        return
    cases = by_function(items)
    kept = {id(item) for each in cases.values() for item in each[:_CASES]}
    _weight.update({function: len(each) / min(len(each), _CASES) for function, each in cases.items()})
    items[:] = [item for item in items if id(item) in kept]


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    before = _now()
    yield
    _spent[item.location[0]] += (_now() - before) * _weight.get(function_of(item), 1.0)


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("CPU seconds")
    for path, seconds in sorted(_spent.items(), key=lambda each: -each[1]):
        terminalreporter.write_line(f"{seconds:8.1f}  {path}")
    terminalreporter.write_line(f"{sum(_spent.values()):8.1f}  in all")
