"""Compiles the C++ kernels of a program with regions several at a time.

Note [Kernels share a translation unit]
Inductor writes one source file for a kernel and its binding to Python, and one process of the C++ compiler makes a
library of it. Nearly all of the time is the same for every kernel: the headers and the linker. (17 kernels of a Llama,
forward and backward: 24.8 CPU seconds in files of their own, 3.8 in one file; the machine code of each is the same.)

So kernels that wait are written into one file, each in a namespace of its own, and compiled at once. The library that
comes out has a number in it that says which kernel Python gets. Each kernel's own library, at the path where Inductor
looks for it, is a copy with its number. It depends on no other file, and a process without regions can load it too.

Kernels wait for a call of a region to be written, or for the first one that is asked for. A kernel goes to the compiler
by itself, as in stock, if another one could change its meaning (it defines macros), if it is large, or if the file with
the others does not compile: then the error is that of stock.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch._inductor.async_compile import AsyncCompile, get_compile_threads
from torch._inductor.codecache import LOCK_TIMEOUT, _worker_compile_cpp, write_atomic
from torch._inductor.cpp_builder import CppBuilder
from torch.utils._filelock import FileLock


log = logging.getLogger(__name__)

# With fewer kernels each, another compiler process costs more than it saves by running beside the first.
LEAST_OF_UNIT = 4
# The numbers of kernels in a library are single letters, and one process should not be the last by far.
MOST_OF_UNIT = 16
# Characters. A kernel that has more takes the compiler longer than what it could share.
LARGE = 30_000

_ENTRY = "kernel_of_this_library:"
_ENTRY_FUNCTION = "PyInit_kernel"
# What the binding to Python includes, after the kernel.
_BINDING = ("#define PY_SSIZE_T_CLEAN", *(f"#include <{h}>" for h in ("Python.h", "sstream", "cstdlib", "cerrno")))
_HARMLESS = frozenset((*_BINDING, "#ifdef Py_GIL_DISABLED", "#endif"))
# These say how the next loop is compiled. Others may hold from there on.
_OF_A_LOOP = ("#pragma omp ", "#pragma GCC ivdep", "#pragma GCC unroll ", "#pragma unroll ")
_DIRECTIVE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)


class _Asked(Future[None]):
    """Done when its kernel's library is there. Who asks does not wait for kernels that are still to be written."""

    def result(self, timeout: float | None = None) -> None:
        flush()
        super().result(timeout)


@dataclass(eq=False)
class _Kernel:
    """A kernel that waits for the compiler."""

    compile_alone: Callable[[], None]  # what stock would give to a thread
    lock_path: str  # held by who writes the library
    builder: CppBuilder
    source: str
    source_path: str
    includes: tuple[str, ...]  # before any code
    done: _Asked = field(default_factory=_Asked)

    @property
    def library(self) -> str:
        return str(self.builder.get_target_file_path())

    def shares_with(self) -> tuple[Any, ...]:
        """Equal for kernels that may be in one file: the compiler's options, and what comes before the code."""
        command = self.builder.get_command_line()
        for own in (self.source_path, self.library):
            command = command.replace(own, "")
        return command, self.includes


# lock path -> its kernel. A kernel may be submitted again while it waits: Inductor forgets that it has asked for the
# kernel when its caches are cleared.
_waiting: dict[str, _Kernel] = {}
_lock = threading.Lock()


def submit(worker: Callable[[], None]) -> Any:
    """Takes a kernel's compile, as ``CppCodeCache.load_async`` submits it, until ``flush``.  Returns a future."""
    kernel = _kernel_of(worker)
    if kernel is None:
        return AsyncCompile.submit(worker)
    with _lock:
        return _waiting.setdefault(kernel.lock_path, kernel).done


def flush() -> None:
    """Gives all kernels that wait to the compiler's threads."""
    with _lock:
        kernels = list(_waiting.values())
        _waiting.clear()
    alike: dict[Any, list[_Kernel]] = {}
    for kernel in kernels:
        alike.setdefault(kernel.shares_with(), []).append(kernel)
    for group in alike.values():
        for unit in _units(group, get_compile_threads()):
            AsyncCompile.submit(functools.partial(_compile, unit))


def _kernel_of(worker: Any) -> _Kernel | None:
    """The kernel that ``worker`` compiles, or None if it cannot share a file."""
    if sys.platform != "linux" or not isinstance(worker, functools.partial) or worker.func is not _worker_compile_cpp:
        return None
    lock_path, builders = worker.args
    if len(builders) != 1:
        return None
    path = Path(builders[0].get_target_file_path()).with_suffix(".cpp")
    try:
        source = path.read_text(encoding="utf-8")
    except OSError:
        return None
    # A function of C has one name in all namespaces. The kernel and its binding are given one each.
    if len(source) > LARGE or source.count('extern "C"') != 1 or source.count(f"{_ENTRY_FUNCTION}(") != 1:
        return None
    includes = _includes_of(source)
    return None if includes is None else _Kernel(worker, lock_path, builders[0], source, str(path), includes)


def _includes_of(source: str) -> tuple[str, ...] | None:
    """What ``source`` includes before its code, or None if it tells the preprocessor anything that outlives it."""
    lines = iter(source.splitlines())
    includes = []
    for line in lines:
        if line.lstrip().startswith("#include"):
            includes.append(line.strip())
        elif line.strip():
            break
    for directive in _DIRECTIVE.findall("\n".join(lines)):
        text = directive.strip()
        if text not in _HARMLESS and not text.startswith(_OF_A_LOOP):
            return None
    return tuple(includes)


def _units(kernels: Sequence[_Kernel], threads: int) -> list[list[_Kernel]]:
    """``kernels`` in files, of about as much source each."""
    count = max(min(threads, len(kernels) // LEAST_OF_UNIT), -(-len(kernels) // MOST_OF_UNIT), 1)
    units: list[list[_Kernel]] = [[] for _ in range(count)]
    for kernel in sorted(kernels, key=lambda kernel: -len(kernel.source)):
        room = [unit for unit in units if len(unit) < MOST_OF_UNIT]
        min(room, key=lambda unit: sum(len(k.source) for k in unit)).append(kernel)
    return units


def _compile(unit: Sequence[_Kernel]) -> None:
    """Makes the libraries of ``unit``: in one file, or each by itself if that fails."""
    if len(unit) > 1:
        try:
            _compile_together(unit)
        except Exception as error:
            log.info("%d kernels are compiled one by one: %s", len(unit), error)
    for kernel in unit:
        # Stock's function compiles nothing if the library is there.
        _settle(kernel.done, kernel.compile_alone)


def _settle(done: Future[None], work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(None)


def _compile_together(unit: Sequence[_Kernel]) -> None:
    with ExitStack() as locks:
        # Another process that compiles the same program waits here, as it does in stock. All lock in one order.
        for kernel in sorted(unit, key=lambda kernel: kernel.lock_path):
            locks.enter_context(FileLock(kernel.lock_path, timeout=LOCK_TIMEOUT))
        missing = [kernel for kernel in unit if not os.path.exists(kernel.library)]
        if len(missing) < 2:
            return
        library = _library_of(missing)
        for number, kernel in enumerate(missing):
            write_atomic(kernel.library, _for_kernel(library, number))


def _library_of(unit: Sequence[_Kernel]) -> bytes:
    folder = os.path.dirname(unit[0].library)
    with tempfile.TemporaryDirectory(prefix="unit", dir=folder) as temporary:
        source = Path(temporary, "unit.cpp")
        source.write_text(_source_of(unit), encoding="utf-8")
        options = unit[0].builder._build_option
        builder = CppBuilder(name="unit", sources=str(source), BuildOption=options, output_dir=temporary)
        builder.build()
        return Path(builder.get_target_file_path()).read_bytes()


def _source_of(unit: Sequence[_Kernel]) -> str:
    """One file with the kernels of ``unit``, and a function by which Python gets the one that the number says."""
    parts = [*_BINDING[:2], *unit[0].includes, *_BINDING[2:]]
    cases = []
    for number, kernel in enumerate(unit):
        names = [(name, f"{name}_{number}") for name in ("kernel", _ENTRY_FUNCTION)]
        parts += [f"#define {name} {own}" for name, own in names]
        parts += [f"namespace region_kernel_{number} {{", f'#line 1 "{kernel.source_path}"', kernel.source, "}"]
        parts += [f"#undef {name}" for name, _ in names]
        cases.append(f"case '{_letter(number)}': return region_kernel_{number}::{_ENTRY_FUNCTION}_{number}();")
    parts += [
        # volatile: the compiler must not know the number.
        f'static volatile char region_kernel[] = "{_ENTRY}{_letter(0)}";',
        f"PyMODINIT_FUNC {_ENTRY_FUNCTION}(void) {{ switch (region_kernel[{len(_ENTRY)}]) {{",
        *cases,
        "default: return nullptr; }}",
    ]
    return "\n".join((*parts, ""))


def _letter(number: int) -> str:
    return chr(ord("A") + number)


def _for_kernel(library: bytes, number: int) -> bytes:
    marks = library.split(f"{_ENTRY}{_letter(0)}".encode())
    if len(marks) != 2:
        raise ValueError(f"the number of the kernel stands {len(marks) - 1} times in the library")
    return f"{_ENTRY}{_letter(number)}".encode().join(marks)
