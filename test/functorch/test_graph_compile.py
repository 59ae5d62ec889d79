"""A graph is printed only if a log or a cache entry wants it."""

from __future__ import annotations

import logging

import pytest
import torch
import torch._functorch.config
from testing.region_models import Stack, mark, train
from torch._functorch._aot_autograd import graph_compile


@pytest.fixture
def printed(monkeypatch):
    """How many graphs were put into words."""
    count = [0]
    write = torch.fx.GraphModule.print_readable

    def counted(self, *args, **kwargs):
        count[0] += 1
        return write(self, *args, **kwargs)

    monkeypatch.setattr(torch.fx.GraphModule, "print_readable", counted)
    return count


def _compile() -> None:
    from functorch.compile import make_boxed_func

    with torch._functorch.config.patch(enable_autograd_cache=False):
        train(mark(Stack()), lambda gm, _: make_boxed_func(gm.forward))


@pytest.mark.row("torch._functorch._aot_autograd.graph_compile:_log_joint_graph")
def test_no_graph_is_printed_for_nobody(printed, monkeypatch):
    monkeypatch.setattr(graph_compile.trace_log, "handlers", [])  # pytest's own
    _compile()
    assert printed == [0]


def test_the_log_has_the_joint_graph_and_both_parts(caplog):
    loggers = [graph_compile.aot_joint_log, graph_compile.aot_graphs_log]
    levels = [log.level for log in loggers]
    try:
        for log in loggers:
            log.setLevel(logging.INFO)
            log.addHandler(caplog.handler)
        _compile()
    finally:
        for log, level in zip(loggers, levels):
            log.removeHandler(caplog.handler)
            log.setLevel(level)
    for title in ("Joint graph", "Forward graph", "Backward graph"):
        assert title in caplog.text


def test_who_traces_the_structure_gets_the_graphs(printed, monkeypatch):
    handler = logging.NullHandler()
    monkeypatch.setattr(graph_compile.trace_log, "handlers", [handler])
    _compile()
    assert printed[0] >= 3
