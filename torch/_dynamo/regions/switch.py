"""Whether this thread compiles a program with regions.

Note [Off means off]
A program without flag and mark runs stock's code. Most of what this overlay replaces is for programs with regions
alone, and is stock's function until a compile is known to have some: a frame that begins under the flag, a frame from
its first call of a marked function on, and a graph with calls of regions that a backend is given, its lazy backward
too. What needs to run before that, or for every program, says so in its row of the manifest (``always``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class _State(threading.local):
    on: bool | None = False  # None while it is being changed
    depth = 0


_state = _State()
# Called, in the thread that compiles, when it begins or ends to compile a program with regions.
ON_CHANGE: list[Callable[[bool], None]] = []
# Called with each error that a compile ends with.
ON_ERROR: list[Callable[[Exception], None]] = []


def has_regions() -> bool:
    """Whether this thread compiles a program that is known to have regions."""
    return bool(_state.on)


def is_compiling() -> bool:
    """Whether this thread is inside of ``compiling``."""
    return _state.depth > 0


def _turn(on: bool) -> None:
    if _state.on is not on:
        _state.on = None  # after an interrupt, all are told again
        for tell in ON_CHANGE:
            tell(on)
        _state.on = on


class compiling:  # reads as a statement
    """While it is entered, one frame or graph is compiled: with regions or without, as far as is known when it begins.

    No generator: if an interrupt falls between its first step and the caller, a generator ends with the traceback
    that keeps it, some time later and maybe in another thread.
    """

    def __init__(self, regions: bool) -> None:
        self._regions = regions

    def __enter__(self) -> None:
        self._before = has_regions(), _state.depth
        try:
            _state.depth += 1
            _turn(self._regions)
        except BaseException:
            self._leave()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, Exception):
                for tell in ON_ERROR:
                    tell(error)
        finally:
            try:
                self._leave()
            except BaseException:  # an interrupt, which is not repeated at once
                self._leave()
                raise

    def _leave(self) -> None:
        on, _state.depth = self._before
        _turn(on)


def regions_found() -> None:
    """From here to its end, the compile that is under way is one with regions."""
    if _state.depth:
        _turn(True)
