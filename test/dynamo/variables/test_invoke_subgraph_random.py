"""Random programs: marking functions as regions changes no result, gradient, state, random number or graph count.

The seed is fixed. ``REGIONS_EXAMPLES=2000`` runs more, ``REGIONS_SEED`` others, and ``REGIONS_BACKENDS=inductor`` on
other backends.
"""

import os

import pytest
from testing.marked_programs import check, programs
from testing.random_examples import PARTS, run_examples


BACKENDS = tuple(os.environ.get("REGIONS_BACKENDS", "eager,aot_eager").split(","))


@pytest.mark.parametrize("part", PARTS)
def test_marks_change_nothing_of_random_programs(part):
    outlined = []
    run_examples(programs(), lambda p: outlined.append(check(p, BACKENDS).traced > 0), part, by_default=8)
    # A test of regions that makes none would pass too.
    assert sum(outlined) > len(outlined) // 5
