"""Room for the calls of a compile on Python's stack.

Note [Room on Python's stack]
Python 3.11 and later put the frames of Python functions into chunks of 16 KB, some twenty frames each. A call that
does not fit takes a new chunk from the system, and its return gives it back. Where a function happens to be the last
that fits, each call it makes is an ``mmap``, page faults and a ``munmap``. Tracing calls thousands of small functions
from one depth: in a marked Llama layer 500 such pairs, a fifth of the time. It is a matter of how deep the program's
own stack is, so one program has it and another has not. A chunk is as large as its first frame asks for, rounded up
to a power of two, and what follows is put into the rest of it. So a frame that says it needs a little more than 1 MB
gets 2 MB, and no call above it asks the system for more. Memory that is not touched costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar


P = ParamSpec("P")
R = TypeVar("R")
# Slots of 8 bytes that the frame asks for: 1 MB, so that with itself it is more than that.
_SLOTS = 2**17


def call_with_room(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls ``function`` where 1 MB of frames find room; see Note [Room on Python's stack]."""
    return function(*args, **kwargs)


if sys.version_info >= (3, 11):  # earlier, frames are objects of their own
    call_with_room.__code__ = call_with_room.__code__.replace(co_stacksize=_SLOTS)
