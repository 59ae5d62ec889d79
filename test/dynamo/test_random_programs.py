"""Random programs: the flag changes no result, gradient, state or random number.

The seed is fixed. ``REGIONS_EXAMPLES=2000`` runs more, ``REGIONS_SEED`` others.
"""

import os

import pytest
from hypothesis import HealthCheck, given, seed, settings
from programs import check, programs


@pytest.mark.parametrize("part", range(4))
def test_the_flag_changes_nothing_of_random_programs(part):
    outlined = []

    @seed(int(os.environ.get("REGIONS_SEED", "0")) * 4 + part)
    @settings(
        max_examples=int(os.environ.get("REGIONS_EXAMPLES", "60")) // 4,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(programs())
    def examine(program):
        outlined.append(check(program, ("eager", "aot_eager")) > 0)

    examine()
    # A test of regions that makes none would pass too.
    assert sum(outlined) > len(outlined) // 4
