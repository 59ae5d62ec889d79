"""Fixtures for tests of all parts."""

from __future__ import annotations

import gc
import sys

import pytest
from testing import cases, vectors


@pytest.fixture
def with_regions():
    """As while a program with regions is compiled: what the overlay switches on then is on."""
    from torch._dynamo.regions.switch import compiling

    with compiling(True):
        yield


def pytest_addoption(parser):
    parser.addoption("--sampled", action="store_true", help="run the cases that testing/cases.py chooses")


def pytest_collection_modifyitems(config, items):
    if config.getoption("sampled") and not cases.EVERY:
        items[:], others = cases.sampled(items)
        config.hook.pytest_deselected(items=others)


def pytest_configure(config):
    # What torch and its compilers have made lives as long as the process, and each full collection goes through it: 16 of
    # 188 CPU seconds of some tests of Dynamo's with Python's own thresholds, 3 with these.
    gc.set_threshold(20_000, 10, 10)
    if config.getoption("numprocesses", None):  # in the process that starts the others
        from testing import kernels  # which imports Inductor: the other processes do so when a test needs it

        vectors.answer_once()
        kernels.share()
    config.addinivalue_line(
        "markers", "row(target): a test of one row; skipped where this release, or a choice, leaves it out"
    )


def pytest_runtest_setup(item):
    # Not imported: as a part of torch, these tests run without the loader.
    loader = sys.modules.get("torch_regions._activate")
    finder = loader.current() if loader is not None else None
    for mark in item.iter_markers("row"):
        if finder is not None and finder.decided and finder.left_out.issuperset(mark.args):
            pytest.skip(f"{mark.args[0]} is left out here")
