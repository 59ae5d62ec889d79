"""Whether this thread compiles a program with regions.

Note [Off means off]
A program without flag and mark runs stock's code. Most replacements of this overlay serve programs with regions only,
and stock's function stands in their place until a compile is known to have regions. Such a compile is

- a frame that begins under the flag;
- a frame from its first call of a marked function on;
- a backend's compile of a graph with region calls, and of its lazy backward.

A replacement that has to run earlier, or for every program, says so in its row of the manifest (``always``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class _State(threading.local):
    on: bool | None = False  # None during a change
    depth = 0


_state = _State()
# Called in the compiling thread when its compile of a program with regions begins or ends.
ON_CHANGE: list[Callable[[bool], None]] = []
# Called with the error that a compile ends with.
ON_ERROR: list[Callable[[Exception], None]] = []


def has_regions() -> bool:
    """Whether this thread is compiling a program that is known to have regions."""
    return bool(_state.on)


def is_compiling() -> bool:
    """Whether this thread is inside ``compiling``."""
    return _state.depth > 0


def _turn(on: bool) -> None:
    if _state.on is not on:
        _state.on = None  # so that after an interrupt all are told again
        for tell in ON_CHANGE:
            tell(on)
        _state.on = on


class compiling:  # reads as a statement
    """The context of one compile of a frame or graph; ``regions``: whether it is known to have regions at its start.

    A class and not a generator: if an interrupt falls between a generator's first step and its caller, only the
    traceback keeps the generator, which then ends some time later and maybe in another thread.
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
            except BaseException:  # an interrupt; the second attempt is not interrupted again at once
                self._leave()
                raise

    def _leave(self) -> None:
        on, _state.depth = self._before
        _turn(on)


def regions_found() -> None:
    """Declares that the compile under way has regions, from here to its end."""
    if _state.depth:
        _turn(True)
