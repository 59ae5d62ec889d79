"""A model that was compiled with regions and dropped is freed, and with it all that regions kept of it."""

import pytest
import torch._dynamo

from benchmarks.dropped_models import run


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("way", ["flag", "mark"])
def test_nothing_of_a_dropped_model_is_left(way, reset):
    """``benchmarks/dropped_models.py`` does the same for thousands of compiles."""
    frames = torch._dynamo.utils.counters["frames"]
    first, second = run(way, 20, reset, 10)
    assert frames["ok"] == 20  # each was compiled
    assert (first.models, first.parameters) == (second.models, second.parameters) == (0, 0)
    # What tests before this one have left may go meanwhile; nothing is to be added.
    assert second.regions <= first.regions
