"""With regions, the garbage collector does not go over the whole process while a frame is compiled.

Note [Garbage of a compile]
Compiling makes objects by the hundred thousand, so Python's collector passes over all that there are several times:
the program's own, torch's, the model's. In a process with a large model a pass takes a quarter of a second and finds
next to nothing. What is there when a frame's compile begins (without the flag, when it first calls a marked region) is
set aside until the frame is compiled (``gc.freeze``), and only what the compile makes is looked at, and only after more
of it was made than Python's threshold says: most of it lives as long as the compile. Afterwards all is as before.
Inductor does the same for a backward with calls of regions, which it compiles when it is first needed.
Nothing is set aside if the program has frozen objects itself, or has turned the collector off.
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
from collections.abc import Iterator


# How many objects more than are gone may be made between two collections. A compile of a layer makes some ten thousand.
_THRESHOLD = 20_000
# Ends when the frame is compiled; None if no frame is being compiled, or garbage is set aside already.
_end: contextvars.ContextVar[contextlib.ExitStack | None] = contextvars.ContextVar("end of the compile", default=None)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """A frame's compile, at the end of which the garbage collector is as it was before."""
    with contextlib.ExitStack() as end:
        end.callback(_end.reset, _end.set(end))
        yield


def set_garbage_aside() -> None:
    """Has the garbage collector look only at what the rest of the frame's compile makes."""
    end = _end.get()
    if end is not None:
        end.enter_context(only_new_garbage())
        _end.set(None)


@contextlib.contextmanager
def only_new_garbage() -> Iterator[None]:
    """What is there is set aside until the end, if the program has not done so itself."""
    ours = gc.isenabled() and gc.get_freeze_count() == 0
    first, *others = before = gc.get_threshold()
    meanwhile = (max(first, _THRESHOLD), *others)
    if ours:
        gc.freeze()
        if first:  # else it never collects
            gc.set_threshold(*meanwhile)
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()
            if gc.get_threshold() == meanwhile:
                gc.set_threshold(*before)
