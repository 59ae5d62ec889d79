"""Whether this thread compiles a program with regions.

Note [Off means off]
A program without flag and mark runs stock's code. Most of what this overlay replaces is for programs with regions
alone, and is stock's function until a compile is known to have some: a frame that begins under the flag, a frame from
its first call of a marked function on, and a graph with calls of regions that a backend is given, its lazy backward
too. What needs to run before that, or for every program, says so in its row of the manifest (``always``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class _State(threading.local):
    on = False
    depth = 0


_state = _State()
# Called, in the thread that compiles, when it begins or ends to compile a program with regions.
ON_CHANGE: list[Callable[[bool], None]] = []
# Called with each error that a compile ends with.
ON_ERROR: list[Callable[[Exception], None]] = []


def has_regions() -> bool:
    """Whether this thread compiles a program that is known to have regions."""
    return _state.on


def is_compiling() -> bool:
    """Whether this thread is inside of ``compiling``."""
    return _state.depth > 0


def _turn(on: bool) -> None:
    if _state.on is not on:
        _state.on = on
        for tell in ON_CHANGE:
            tell(on)


@contextlib.contextmanager
def compiling(regions: bool) -> Iterator[None]:
    """The compile of one frame or graph, with or without regions as far as is known when it begins."""
    before = _state.on
    _state.depth += 1
    try:
        _turn(regions)
        yield
    except Exception as error:
        for tell in ON_ERROR:
            tell(error)
        raise
    finally:
        _state.depth -= 1
        _turn(before)


def regions_found() -> None:
    """From here to its end, the compile that is under way is one with regions."""
    if _state.depth:
        _turn(True)
