"""The description of what a cache key is made of, which only logs read."""

import logging
import types

import pytest
import torch
from torch._dynamo.regions.switch import compiling
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCachePickler
from torch._inductor.codecache import FxGraphCachePickler, log
from torch._logging._internal import trace_log

from torch_regions.overlay import stock


NAME = "torch._inductor.codecache:FxGraphCachePickler.debug_lines"
PARTS = types.SimpleNamespace(number=1, listed=["a", b"b"], named={"c": torch.float32})


def _lines(monkeypatch, kind=FxGraphCachePickler, regions=True, handlers=()):
    """What the replacement says, and what stock says."""
    pickler = kind(torch.fx.symbolic_trace(lambda x: x.sin()))
    # torch's own handler removes itself at the first record if TORCH_TRACE is not set; pytest adds others.
    monkeypatch.setattr(trace_log, "handlers", [*handlers])
    with compiling(regions):
        return pickler.debug_lines(PARTS), stock(NAME)(pickler, PARTS)


def test_a_key_is_not_described_if_no_log_reads_it(monkeypatch):
    found, whole = _lines(monkeypatch)
    assert found == [] and len(whole) == 4


@pytest.mark.parametrize("reader", ["debug", "trace", "AOTAutogradCache", "no regions"])
def test_a_key_is_described_for_a_reader(reader, monkeypatch):
    if reader == "debug":
        monkeypatch.setattr(log, "isEnabledFor", lambda level: level >= logging.DEBUG)
    kind = AOTAutogradCachePickler if reader == "AOTAutogradCache" else FxGraphCachePickler
    handlers = [logging.NullHandler()] if reader == "trace" else []
    found, whole = _lines(monkeypatch, kind, reader != "no regions", handlers)
    assert found == whole and len(whole) == 4
