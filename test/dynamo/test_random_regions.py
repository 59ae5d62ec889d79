"""Random programs: marking functions as regions changes no result, gradient, state, random number or graph count.

The seed is fixed. ``REGIONS_EXAMPLES=2000`` runs more, ``REGIONS_SEED`` others, and ``REGIONS_BACKENDS=inductor`` on
other backends.
"""

import os

import pytest
from hypothesis import HealthCheck, given, seed, settings
from region_programs import check, programs


BACKENDS = tuple(os.environ.get("REGIONS_BACKENDS", "eager,aot_eager").split(","))


@pytest.mark.parametrize("part", range(4))
def test_marks_change_nothing_of_random_programs(part):
    outlined = []

    @seed(int(os.environ.get("REGIONS_SEED", "0")) * 4 + part)
    @settings(
        max_examples=int(os.environ.get("REGIONS_EXAMPLES", "24")) // 4,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(programs())
    def examine(program):
        outlined.append(check(program, BACKENDS).traced > 0)

    examine()
    # A test of regions that makes none would pass too.
    assert sum(outlined) > len(outlined) // 8
