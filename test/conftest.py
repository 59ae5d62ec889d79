"""Fixtures for tests of all parts."""

from __future__ import annotations

import pytest


@pytest.fixture
def with_regions():
    """As while a program with regions is compiled: what the overlay switches on then is on."""
    from torch._dynamo.regions.switch import compiling

    with compiling(True):
        yield
