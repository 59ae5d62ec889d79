"""Random programs: the flag changes no result, gradient, state or random number.

The seed is fixed. ``REGIONS_EXAMPLES=2000`` runs more, ``REGIONS_SEED`` others.
"""

import pytest
from testing.flag_programs import check, programs
from testing.random_examples import PARTS, run_examples


@pytest.mark.parametrize("part", PARTS)
def test_the_flag_changes_nothing_of_random_programs(part):
    outlined = []
    run_examples(programs(), lambda p: outlined.append(check(p, ("eager", "aot_eager")) > 0), part, by_default=12)
    # A test of regions that makes none would pass too.
    assert sum(outlined) > len(outlined) // 4
