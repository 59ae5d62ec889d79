"""Inductor's cache folder, new for each test, but for kernels: one that an earlier test compiled is not compiled again."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import shutil
import string
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torch._inductor.runtime.runtime_utils import cache_dir
from torch._inductor.utils import fresh_cache


VARIABLE = "REGIONS_TEST_KERNELS"
# A kernel lies in a folder that is named by two characters of its hash, which are digits of base 32.
_DIGITS = string.ascii_lowercase + "234567"


@functools.cache
def _kernels() -> Path:
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    folder = tempfile.mkdtemp(prefix="kernels_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Also the locks: of two processes that compile one kernel, the second waits for the first.
    for name in ("locks", *(a + b for a, b in itertools.product(_DIGITS, repeat=2))):
        os.mkdir(os.path.join(folder, name))
    return Path(folder)


def share() -> None:
    """Gives the processes that this one starts one folder of kernels."""
    os.environ[VARIABLE] = str(_kernels())


@contextlib.contextmanager
def fresh_graphs() -> Iterator[None]:
    """As ``fresh_cache``: no graph, body or tuned choice is found. The source of a kernel finds what it was compiled to."""
    with fresh_cache():
        for folder in _kernels().iterdir():
            os.symlink(folder, Path(cache_dir(), folder.name))
        yield
