"""One line on the terminal while a program with regions compiles: for processes that have ``TORCH_REGIONS_PROGRESS=1``.

A thread draws the line; the threads that compile pay for no more than noting when they begin and end.  The stage is
what Dynamo's own log of events says that the compiling thread is in.  Nothing is drawn where standard error is not a
terminal, in a process of a rank other than 0, or in a process that was forked.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from types import ModuleType


# Seconds until the line is drawn at first, between two drawings, and after something else was written to the terminal.
FIRST, EVERY, PAUSE = 0.5, 0.2, 0.6
NEEDS_RICH = "torch-regions: TORCH_REGIONS_PROGRESS=1 needs rich: pip install rich\n"
# Names of Dynamo's events -> the stage; the innermost event that is listed counts.
STAGES = {
    "dynamo": "trace",
    "backend_compile": "backend",
    "create_aot_dispatcher_function": "AOTAutograd",
    "entire_backward_compile": "backward",
    "inductor_compile": "Inductor",
    "code_gen": "Inductor, code",
    "async_compile.wait": "C++ or Triton compile",
    "build_guards": "guards",
}
# Dynamo's counters of what was found in a cache.
_HITS = (("aot_autograd", "autograd_cache_hit"), ("inductor", "fxgraph_cache_hit"), ("region_bodies", "found"))
_BACK, _ERASE = "\r", "\r\x1b[2K"


@dataclass
class Compiling:
    """A compile that is under way in one thread."""

    thread: str
    # The names of the events that the thread is in, from the outside: Dynamo's own list, which changes meanwhile.
    events: list[str]
    began: float
    began_ns: int
    hits: int
    bodies: int


def _counted(group: str, name: str) -> int:
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters[group][name]) if utils is not None else 0


def _hits() -> int:
    return sum(_counted(*each) for each in _HITS)


def _bodies() -> int:
    return _counted("region_bodies", "lowered") + _counted("region_bodies", "found")


def _record_of(compiling: Compiling) -> Any:
    """The latest record of regions that the compile has made; None before its first call of a region."""
    facts: Any = sys.modules.get("torch._dynamo.regions.facts")
    found = reversed(facts.facts()) if facts is not None else ()
    return next((each for each in found if each.thread == compiling.thread and each.at >= compiling.began_ns), None)


def stage_of(events: list[str]) -> str:
    """The stage that the innermost known event of ``events`` belongs to."""
    return next((STAGES[event] for event in reversed(events) if event in STAGES), "trace")


def line(compiling: Compiling, now: float, others: int = 0) -> str:
    """What the terminal shows of a compile."""
    stage = stage_of(list(compiling.events))
    parts = [stage]
    record = _record_of(compiling)
    if record is not None and stage == "trace":
        of = f" of {record.expected}" if record.expected >= record.begun else ""
        reused = sum(call.outcome.name == "REUSED" for call in record.calls)
        parts.append(f"region {record.begun}{of}, {reused} reused")
    elif record is not None and stage.startswith("Inductor") and record.bodies:
        parts.append(f"body {min(max(_bodies() - compiling.bodies, 1), len(record.bodies))} of {len(record.bodies)}")
    parts.append(f"{now - compiling.began:.0f} s")
    hits = max(_hits() - compiling.hits, 0)
    parts.append(f"{hits} cache hit{'' if hits == 1 else 's'}")
    if others:
        parts.append(f"and {others} more threads")
    return f"torch.compile: {' | '.join(parts)}"


class Progress:
    """The line of one process."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        # Thread id -> its compile, in the order in which they began.
        self.compiling: dict[int, Compiling] = {}
        # A thread that logs while it draws may hold it already.
        self.lock = threading.RLock()
        self.active = threading.Event()
        self.drawn = False
        self.quiet_until = 0.0
        self.thread: threading.Thread | None = None
        self.pid = os.getpid()

    def change(self, on: bool) -> None:
        """The calling thread begins, or ends, to compile a program with regions."""
        if self.pid != os.getpid():
            return
        utils: Any = sys.modules["torch._dynamo.utils"]
        with self.lock:
            if not on:
                self.compiling.pop(threading.get_ident(), None)
                if not self.compiling:
                    self.active.clear()
                    self._erase()
                return
            events = utils.get_chromium_event_logger().get_stack()
            thread = threading.current_thread().name
            now = Compiling(thread, events, time.monotonic(), time.time_ns(), _hits(), _bodies())
            self.compiling[threading.get_ident()] = now
            self.active.set()
            if self.thread is None:
                self.thread = threading.Thread(target=self._draw_always, name="torch-regions progress", daemon=True)
                self.thread.start()

    def make_room(self) -> None:
        """Takes the line away, for something else is about to be written to the terminal."""
        if self.pid == os.getpid() and self.drawn:
            with self.lock:
                self._erase()
                self.quiet_until = time.monotonic() + PAUSE

    def _draw_always(self) -> None:
        try:
            from rich.console import Console
        except ImportError:
            self.stream.write(NEEDS_RICH)
            return
        console = Console(file=self.stream)
        if console.is_dumb_terminal:
            return
        try:
            while self.active.wait():
                self._draw(console)
                time.sleep(EVERY)
        except Exception:  # a terminal that is gone, or an interpreter that ends: a line is no reason to fail
            return

    def _draw(self, console: Any) -> None:
        from rich.text import Text

        with self.lock:
            now = time.monotonic()
            found = list(self.compiling.values())
            if not found or now - found[0].began < FIRST or now < self.quiet_until:
                return
            with console.capture() as capture:
                text = Text(line(found[0], now, len(found) - 1), style="cyan", no_wrap=True, overflow="ellipsis")
                text.truncate(max(console.width - 1, 1), overflow="ellipsis")
                console.print(text, end="")
            # The cursor stays in front: what another writer prints begins at the left edge.
            self.stream.write(f"{_ERASE}{capture.get()}{_BACK}")
            self.stream.flush()
            self.drawn = True

    def _erase(self) -> None:
        if self.drawn:
            self.drawn = False
            try:
                self.stream.write(_ERASE)
                self.stream.flush()
            except (OSError, ValueError):  # the terminal is gone
                return


def is_wanted(stream: Any) -> bool:
    """Whether this process shows the line: on a terminal, and once for all ranks of a job."""
    try:
        terminal = bool(stream.isatty())
    except (AttributeError, ValueError):  # no standard error, or a closed one
        return False
    return terminal and os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


_progress: Progress | None = None


def listen(module: ModuleType) -> None:
    """Shows compiles with regions from now on; ``module`` is the overlay's that tells of them."""
    global _progress
    if _progress is None and is_wanted(sys.stderr):
        _progress = shown = Progress(sys.stderr)
        make = logging.getLogRecordFactory()

        def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
            shown.make_room()
            return make(*args, **kwargs)

        logging.setLogRecordFactory(factory)
        module.ON_CHANGE.append(shown.change)
