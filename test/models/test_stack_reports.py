"""What the report says of each row of benchmarks/stack.py is what the counters say."""

import gc

import pytest
import torch
import torch._dynamo
from torch._dynamo.regions.facts import forget_facts
from torch._dynamo.utils import clear_compilation_metrics, counters

import torch_regions
from benchmarks.stack_rows import ROWS


# Nothing repeats in a frame of theirs: Dynamo compiles layer by layer.
WITHOUT_BODIES = {"graph break in one layer"}
OUTCOMES = ("traced", "reused", "inlined")


@pytest.fixture
def compiled(request):
    """The compiles of a row of four layers, as the report has them, and the counters."""
    torch._dynamo.reset()
    counters.clear()
    clear_compilation_metrics()
    forget_facts()
    torch.manual_seed(0)
    module, inputs = ROWS[request.param](4)
    config = {"use_graph_deduplication": True, **getattr(module, "dynamo_config", {})}
    with torch._dynamo.config.patch(config):
        torch.compile(module, backend="eager")(*inputs)
    yield torch_regions.report().data["processes"][0]["compiles"], counters
    torch._dynamo.reset()
    if torch.distributed.is_initialized():  # a row of tensor parallelism
        torch.distributed.destroy_process_group()
    gc.collect()


@pytest.mark.parametrize("name, compiled", [(name, name) for name in ROWS], indirect=["compiled"], ids=list(ROWS))
def test_the_report_says_what_the_counters_say(name, compiled):
    compiles, counted = compiled
    bodies = [body for each in compiles for body in each["bodies"]]
    searched = counted["graph_deduplication"]
    assert bool(bodies) == (name not in WITHOUT_BODIES)
    assert sum(each["operators"] or 0 for each in compiles) == searched["operators"]
    assert sum(body["calls"] for body in bodies) == searched["calls"]
    assert sum(body["calls"] * body["operators"] for body in bodies) == searched["operators_outlined"]
    ended = [call["outcome"] for each in compiles for call in each["calls"]]
    assert [ended.count(outcome.upper()) for outcome in OUTCOMES] == [counted["regions"][key] for key in OUTCOMES]
