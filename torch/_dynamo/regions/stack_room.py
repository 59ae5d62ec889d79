"""Reserves space on Python's stack for the calls of a compile.

Note [Room on Python's stack]
Python 3.11 and later allocate the frames of Python functions in chunks of 16 KB, some twenty frames each. A call whose
frame does not fit allocates a new chunk from the system, and its return frees the chunk. If a function's frame is the
last that fits, each call that the function makes costs an ``mmap``, page faults and a ``munmap``. Tracing calls
thousands of small functions from one depth: a marked Llama layer had 500 such pairs, a fifth of its time. Whether a
program is hit depends on how deep its own stack is. A chunk has the size that its first frame needs, rounded up to a
power of two, and later frames use the rest of the chunk. So a frame that declares a little more than 1 MB gets 2 MB,
and the calls above it allocate nothing. Memory that is not touched costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar


P = ParamSpec("P")
R = TypeVar("R")
# Slots of 8 bytes that the frame declares: 1 MB. With its own overhead, the frame needs a little more.
_SLOTS = 2**17


def call_with_room(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls ``function`` with 1 MB of space for frames above it; see Note [Room on Python's stack]."""
    return function(*args, **kwargs)


if sys.version_info >= (3, 11):  # in earlier releases, each frame is an object on the heap
    call_with_room.__code__ = call_with_room.__code__.replace(co_stacksize=_SLOTS)
