"""The fuzzer can fail: it finds each of these faults within a number of programs.  Runs with REGIONS_SEEDED_FAULTS=1."""

import os

import pytest
from faults import FAULTS
from fuzz_oracle import MODES
from fuzz_search import Search
from fuzz_workers import quiet


pytestmark = pytest.mark.skipif(
    not os.environ.get("REGIONS_SEEDED_FAULTS"), reason="takes minutes: runs with REGIONS_SEEDED_FAULTS=1"
)


@pytest.fixture
def quietly():
    with pytest.MonkeyPatch.context() as patch:
        quiet(patch)
        yield


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_seeded_fault_is_found(fault, quietly):
    backend, limit = FAULTS[fault]
    run = number = 0
    while run < limit:
        # Without verification: it would find some of them by itself.
        search = Search(tuple(mode for mode in MODES if "+" not in mode), backend, fault=fault)
        search.go(7_000 + number, 100)
        run += sum(search.run.values())
        number += 1
        if search.find is not None:
            print(f"{fault.__name__}: found after {run} programs: {search.find.failure.kind}")
            return
    pytest.fail(f"{fault.__name__} was not found within {limit} programs")
