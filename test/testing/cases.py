"""Which cases of a product `make test` runs; `make test-full` runs all."""

import os

import pytest


EVERY = bool(os.environ.get("REGIONS_ALL_MODELS"))
# The rest of each test's cases; without it, `make test` runs those that differ most.
ALL = pytest.mark.skipif(not EVERY, reason="REGIONS_ALL_MODELS is not set")


def some(cases, by_default):
    """Parameters of a test: all ``cases``, of which those not in ``by_default`` run on request."""
    together = [case if isinstance(case, tuple) else (case,) for case in cases]
    wanted = [case if isinstance(case, tuple) else (case,) for case in by_default]
    return [pytest.param(*case, marks=() if case in wanted else ALL) for case in together]
