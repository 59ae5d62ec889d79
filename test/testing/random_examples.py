"""How random programs are drawn: a fixed seed, and the environment variables that ask for more or others."""

import os

from hypothesis import HealthCheck, given, seed, settings


PARTS = range(4)


def run_examples(programs, examine, part, by_default):
    """Calls ``examine`` with the programs of one part; ``by_default`` is their number in all parts together.

    ``REGIONS_EXAMPLES=2000`` runs more, ``REGIONS_SEED`` others.
    """

    @seed(int(os.environ.get("REGIONS_SEED", "0")) * len(PARTS) + part)
    @settings(
        max_examples=int(os.environ.get("REGIONS_EXAMPLES", by_default)) // len(PARTS),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(programs)
    def run(program):
        examine(program)

    run()
