"""What the tests of Dynamo share: each starts anew, and some need a setting."""

import pytest
import torch._dynamo
from torch._dynamo.regions.facts import forget_facts
from torch._dynamo.regions.outcomes import forget_outcomes
from torch._dynamo.utils import counters


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    forget_outcomes()
    forget_facts()
    yield
    torch._dynamo.reset()


@pytest.fixture
def bodies(fresh):
    """Also bodies that are called once are kept, and the outlining checks itself."""
    with torch._dynamo.config.patch(graph_deduplication_lint=True, inline_single_use_invoke_subgraph=False):
        yield


@pytest.fixture
def skip_side_effects():
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        yield
