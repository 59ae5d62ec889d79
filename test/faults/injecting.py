"""Raises an exception at a call or a return of one function, and tells what the process is like afterwards.

An event is a function of a file of interest and the moment at which Python reports it to a trace function. Python checks
for signals at the same moments, so an injected KeyboardInterrupt stands for a Ctrl-C that arrives there.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch._dynamo
from global_state import GlobalState


@dataclass(frozen=True)
class Event:
    """The ``number``-th call of a function, or the return of that call."""

    file: str
    function: str
    line: int
    moment: str  # "call" or "return"
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.function}, {self.moment} {self.number}"


KINDS: dict[str, Callable[[], BaseException]] = {
    "ZeroDivisionError": lambda: ZeroDivisionError("injected"),
    "AssertionError": lambda: AssertionError("injected"),
    "OSError": lambda: OSError(errno.ENOSPC, "injected"),
    "MemoryError": lambda: MemoryError("injected"),
    "RecursionError": lambda: RecursionError("injected"),
    "StopIteration": lambda: StopIteration("injected"),
    "Unsupported": lambda: torch._dynamo.exc.Unsupported("injected", "injected"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("injected"),
    "SystemExit": lambda: SystemExit("injected"),
}


class Injected:
    """While it is entered, raises at ``event``; without one, counts the events in files that ``of_interest`` takes."""

    def __init__(
        self, of_interest: Callable[[str], str | None], event: Event | None = None, kind: str = "KeyboardInterrupt"
    ) -> None:
        self.of_interest = of_interest
        self.event = event
        self.kind = kind
        self.counts: dict[tuple[str, str, int], int] = {}
        self.raised = False
        self._keys: dict[CodeType, Any] = {}

    def __enter__(self) -> Injected:
        sys.settrace(self._seen)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _seen(self, frame: FrameType, moment: str, argument: Any) -> Any:
        code = frame.f_code
        key = self._keys.get(code, code)
        if key is code:
            file = self.of_interest(code.co_filename)
            name = getattr(code, "co_qualname", code.co_name)
            key = self._keys[code] = None if file is None else (file, name, code.co_firstlineno)
        event = self.event
        if key is None or (event is not None and key != (event.file, event.function, event.line)):
            return None
        if moment == "call":
            self.counts[key] = self.counts.get(key, 0) + 1
        if event is None or self.raised or self.counts[key] != event.number:
            return None
        if moment == event.moment:
            self.raised = True
            raise KINDS[self.kind]()
        frame.f_trace_lines = False
        return self._seen


class Timer:
    """While it is entered, the timer of the process raises KeyboardInterrupt once, wherever Python is by then."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.raised = False

    def __enter__(self) -> Timer:
        signal.signal(signal.SIGPROF, self._raise)
        signal.setitimer(signal.ITIMER_PROF, self.seconds)
        return self

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def _raise(self, *_: object) -> None:
        self.raised = True
        raise KeyboardInterrupt


# A hook of a backward that is traced sets it, and a callback at the end of that backward takes it back.
STOCKS = {"patched.torch._functorch._aot_autograd.logging_utils.callback_set"}


@dataclass
class Found:
    """What came of one injection."""

    event: str
    kind: str
    outcome: str  # class of what the caller got, "absorbed" or "not reached"
    left: list[str]  # keys of global state that differ
    fault: str = ""  # what else is wrong
    where: list[str] = field(default_factory=list)  # the innermost functions that it was raised in

    @property
    def is_stocks(self) -> bool:
        """Whether nothing is wrong but what stock leaves behind too."""
        return bool(self.left) and STOCKS.issuperset(self.left) and not self.fault

    @property
    def is_bad(self) -> bool:
        return bool(self.left or self.fault) and not self.is_stocks


def same(values: Any, expected: Any) -> bool:
    return len(values) == len(expected) and all(torch.allclose(a, b, atol=1e-5) for a, b in zip(values, expected))


def _stack(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def fresh() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


class Trial:
    """One program and what it is like without faults."""

    def __init__(
        self,
        program: Callable[[], Any],
        expected: Any,
        of_interest: Callable[[str], str | None],
        before_each: Callable[[], None] = lambda: None,
    ) -> None:
        self.program, self.expected, self.of_interest, self.before_each = program, expected, of_interest, before_each
        for _ in range(2):  # what is made once and kept
            self._run()
        self.before = GlobalState()
        self._run()
        self.counted = dict(torch._dynamo.utils.counters["regions"])
        # What changes although nothing was injected: counters and caches.
        moving = set(self.before.differing())
        self.before = GlobalState()
        self.before.moving = moving

    def _run(self) -> None:
        fresh()
        self.before_each()
        assert same(self.program(), self.expected)

    def events(self) -> list[tuple[tuple[str, str, int], int]]:
        fresh()
        self.before_each()
        with Injected(self.of_interest) as counting:
            self.program()
        return sorted(counting.counts.items())

    def inject(self, event: Event, kind: str) -> Found:
        """Raises an exception at an event, and runs the program again."""
        injected = Injected(self.of_interest, event, kind)
        return self._attempt(str(event), kind, injected, lambda: injected.raised)

    def interrupt(self, seconds: float) -> Found:
        """Raises KeyboardInterrupt after so much time of the processor, and runs the program again."""
        timer = Timer(seconds)
        return self._attempt(f"after {seconds:.3f} s", "KeyboardInterrupt", timer, lambda: timer.raised)

    def seconds(self) -> float:
        """Time of the processor that a run takes."""
        started = time.process_time()
        self._run()
        return time.process_time() - started

    def _attempt(
        self, event: str, kind: str, fault: contextlib.AbstractContextManager[Any], raised: Callable[[], bool]
    ) -> Found:
        fresh()
        self.before_each()
        found = Found(event, kind, "", [])
        try:
            with fault:
                values = self.program()
        except BaseException as error:
            found.outcome = type(error).__name__
            found.where = [f"{f.filename.rpartition('torch/')[2]}:{f.lineno} {f.name}" for f in _stack(error)[-8:]]
            if kind in ("KeyboardInterrupt", "SystemExit") and found.outcome != kind:
                found.fault = f"the interrupt arrived as {found.outcome}"
            del error
        else:
            found.outcome = "absorbed" if raised() else "not reached"
            if not same(values, self.expected):
                found.fault = "wrong result"
        found.left = self._left()
        found.fault = found.fault or self._next_run()
        return found

    def _next_run(self) -> str:
        """What is wrong with the next run of the program; empty when it is as always."""
        fresh()
        self.before_each()
        try:
            values = self.program()
        except BaseException as error:
            return f"the next run: {type(error).__name__}: {str(error)[:300]}"
        counted = dict(torch._dynamo.utils.counters["regions"])
        if not same(values, self.expected):
            return "the next run: wrong result"
        return "" if counted == self.counted else f"the next run: {counted} for {self.counted}"

    def _left(self) -> list[str]:
        if self.before.differing():
            gc.collect()  # a generator that a cycle of an exception still refers to ends with it
        return self.before.differing()


# A `with` statement calls these two; an exception of another kind is raised inside of them. Stock's context managers are
# the same: an interrupt that arrives at the first step of leaving one leaves it entered.
_UNGUARDED = {("compiling.__enter__", "return"), ("compiling.__exit__", "call")}


def moments(counts: list[tuple[tuple[str, str, int], int]]) -> Iterator[Event]:
    """Call and return of each function, the first time and the last."""
    for (file, function, line), count in counts:
        for number in sorted({1, count}):
            for moment in ("call", "return"):
                if (function, moment) in _UNGUARDED:
                    continue
                yield Event(file, function, line, moment, number)
