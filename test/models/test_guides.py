"""The code of each guide runs, and what it says of counts is what the report says."""

import functools
import gc
import re

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from testing.overlay_tools import REPO
from torch._dynamo.regions.facts import forget_facts
from torch._dynamo.utils import clear_compilation_metrics, counters


GUIDES = sorted((REPO / "docs" / "guides").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """As in a process of its own, with a backend that is quick to compile."""
    torch._dynamo.reset()
    counters.clear()
    clear_compilation_metrics()
    forget_facts()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    with torch._dynamo.config.patch(use_graph_deduplication=False), torch.random.fork_rng():
        yield
    if dist.is_initialized():
        dist.destroy_process_group()
    torch._dynamo.reset()
    gc.collect()


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_the_code_of_a_guide_runs(guide):
    text = guide.read_text()
    names = {"__name__": "guide"}
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```python")
    for block in blocks:
        first = text[: block.start(1)].count("\n")
        exec(compile("\n" * first + block[1], str(guide), "exec"), names)
