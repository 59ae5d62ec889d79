"""TORCH_REGIONS_PROGRESS: a line on a terminal while a program compiles, and nothing anywhere else."""

import io
import os
import pty
import re
import subprocess
import sys
import textwrap
import time
import types

import pytest
from testing.overlay_tools import REPO

from torch_regions._report import progress


PROGRAM = """
    import logging, time
    import torch, torch._dynamo
    from testing.reported_programs import Layers

    class Slow(Layers):
        def forward(self, x):
            for layer in self.layers:
                wait()
                x = layer(x)
            return x

    @torch._dynamo.assume_constant_result
    def wait():
        time.sleep(0.25)
        return 0

    def backend(graph, inputs):
        logging.getLogger("mine").warning("a line of the log")
        time.sleep(1.2)
        return graph

    torch._dynamo.config.use_graph_deduplication = True
    torch.compile(Slow([0.1] * 6), backend=backend)(torch.ones(2, 8))
    print("compiled")
    time.sleep(0.3)
"""


def environment(**more):
    path = os.pathsep.join([str(REPO), str(REPO / "test")])
    return {**os.environ, "PYTHONPATH": path, "TORCH_REGIONS_PROGRESS": "1", "TERM": "xterm", "COLUMNS": "100", **more}


def on_a_terminal(program, **more):
    """What a terminal is written while the program runs; both of its streams go there."""
    ours, its = pty.openpty()
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment(**more)) as running:
        os.close(its)
        written = b""
        while True:
            try:
                read = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not read:
                break
            written += read
    os.close(ours)
    assert running.returncode == 0, written.decode()
    return written.decode()


def test_a_terminal_shows_stage_region_time_and_hits_and_nothing_is_left_of_it():
    written = on_a_terminal(PROGRAM)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", written)
    assert re.search(r"torch\.compile: trace \| region [1-6] of 6, \d reused \| \d+ s \| 0 cache hits", plain)
    assert "torch.compile: backend | " in plain
    # The line is taken away before a log's, and before the program goes on.
    assert re.search(r"\x1b\[2Ka line of the log\r\n", plain)
    assert re.search(r"\x1b\[2Kcompiled\r\n$", plain)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    "ranks, wanted",
    [({}, True), ({"RANK": "0"}, True), ({"RANK": "1", "LOCAL_RANK": "0"}, False), ({"LOCAL_RANK": "1"}, False)],
)
def test_one_rank_shows_it(monkeypatch, ranks, wanted):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    assert progress.is_wanted(Terminal()) is wanted
    assert not progress.is_wanted(io.StringIO()) and not progress.is_wanted(None)


@pytest.fixture
def shown(monkeypatch):
    import torch._dynamo.utils  # noqa: F401

    monkeypatch.setattr(progress, "FIRST", 0)
    return progress.Progress(Terminal())


def until_written(shown):
    for _ in range(200):
        if shown.stream.getvalue():
            return shown.stream.getvalue()
        time.sleep(0.02)
    raise AssertionError("nothing was written")


def test_where_standard_error_is_no_terminal_nothing_listens(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    listeners = types.SimpleNamespace(ON_CHANGE=[])
    progress.listen(listeners)
    assert not listeners.ON_CHANGE


def test_without_rich_it_says_what_is_missing(monkeypatch, shown):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    shown.change(True)
    assert until_written(shown) == progress.NEEDS_RICH
    shown.change(False)


def test_a_process_that_was_forked_shows_none(shown):
    shown.pid += 1
    shown.change(True)
    assert not shown.compiling and shown.thread is None


def test_the_innermost_known_event_is_the_stage():
    outer = ["dynamo", "entire_frame_compile", "backend_compile", "create_aot_dispatcher_function"]
    assert progress.stage_of(outer) == "AOTAutograd"
    assert progress.stage_of([*outer, "inductor_compile", "GraphLowering.run"]) == "Inductor"
    assert progress.stage_of([*outer, "inductor_compile", "code_gen", "async_compile.wait"]) == "C++ or Triton compile"
    assert progress.stage_of([]) == "trace"


@pytest.mark.parametrize("value", ["", "1"])
def test_not_asked_for_it_is_not_imported(value):
    code = (
        "import sys; from torch_regions import _activate; _activate.activate()\n"
        "print('torch_regions._report.progress' in sys.modules)"
    )
    more = {"TORCH_REGIONS_PROGRESS": value, "TORCH_REGIONS": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(**more))
    assert done.stdout == f"{value == '1'}\n"
