"""A plugin of pytest: CPU seconds of each test file, processes that a test started and ended included.

``make test-times`` uses it, in one process; with ``CASES=1`` it runs one case of each test function and reckons with
that for the others; with ``COSTS=1`` it writes what each slow test function takes a case (testing/cases.py).  Wall time
of a shared machine says nothing.
"""

from __future__ import annotations

import collections
import json
import os

import pytest
from testing.cases import BUDGET, COSTS, by_function, function_of, name_of


_CASES = int(os.environ.get("CASES", "0"))
# Test function -> CPU seconds of each case that ran
_of_cases: collections.defaultdict[str, list[float]] = collections.defaultdict(list)
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
    seconds = _now() - before
    _spent[item.location[0]] += seconds * _weight.get(function_of(item), 1.0)
    _of_cases[name_of(function_of(item))].append(seconds)


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("CPU seconds")
    for path, seconds in sorted(_spent.items(), key=lambda each: -each[1]):
        terminalreporter.write_line(f"{seconds:8.1f}  {path}")
    terminalreporter.write_line(f"{sum(_spent.values()):8.1f}  in all")
    if os.environ.get("COSTS") == "1":
        # Cases of a test that is not among TESTS keep what they took.
        costs = {name: one for name, one in json.loads(COSTS.read_text()).items() if name not in _of_cases}
        for name, each in _of_cases.items():
            if len(each) > 2 and sum(each) > BUDGET:
                costs[name] = round(sum(each) / len(each), 1)
        COSTS.write_text(json.dumps(dict(sorted(costs.items())), indent=1) + "\n")
