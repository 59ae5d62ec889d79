"""The generated code of a region's body: compiled apart from any program, then linked into the graph around it.

Note [A body is an object file]
Inductor writes the code of a body into the middle of a program: the body's kernels are numbered with the program's, a
kernel that the program already has is not defined again, and every buffer's name contains the name of the body in the
program. So the text depends on the program.

Here a body is generated against an empty wrapper, under a name of its own, with kernels that are numbered from zero.
That text depends on nothing but the body. ``link`` puts it into a program: it gives the kernels the program's next
numbers, or the names of equal kernels that the program already has, and it replaces the body's name in the buffers. A
body from the cache and a newly lowered body go through the same ``link``, so both give the same program: the one that
Inductor would have written. The program contains the text itself, not a reference to it, so no entry of the cache
depends on another one.

Code for a GPU also needs imports at the head of the program, which the wrapper of the program writes once; ``headers``
says which. Triton's compile workers know a kernel by its source, and its name is in the source. So a kernel goes to
them when the body is linked and the name is final, and not when its code is generated.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import code_hash, get_path
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.regions.early_kernels import TRITON_JOB, arguments_of, compile_by_triton
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V


# Names that occur nowhere else in a program.
BODY_NAME = "regionbody7c41"
_KERNEL_NUMBER = "regionkernel7c41_{}_"
_KERNEL_NAME = re.compile(r"(\w*?)regionkernel7c41_(\d+)_")
# Methods of the program's wrapper that write what a body may need at its head.
HEADERS = ("write_triton_header_once", "write_get_raw_stream_header_once")
_KERNEL_PATH = re.compile(r"^(# kernel path: )(.*)$", re.MULTILINE)


class NotApartError(Exception):
    """The generated code cannot be separated from a program's."""


@dataclass
class Kernel:
    """A kernel that a body defines."""

    stem: str  # its name without its number
    source: str  # equal kernels have equal sources
    definition: str


@dataclass
class BodyCode:
    """The text of a body; the definitions of its kernels stand between ``before`` and ``after``."""

    before: str
    kernels: list[Kernel]
    after: str
    guards: list[Any] = field(default_factory=list)  # that writing it makes: see cache_symbols.py
    headers: list[str] = field(default_factory=list)  # those of ``HEADERS`` that it needs

    def mapped(self, change: Callable[[str], str]) -> BodyCode:
        """The same code with each of its texts changed."""
        kernels = [Kernel(change(k.stem), change(k.source), change(k.definition)) for k in self.kernels]
        return BodyCode(change(self.before), kernels, change(self.after), self.guards, self.headers)


class _EmptyWrapper(PythonWrapperCodegen):
    """The outermost wrapper, for a body outside of any program."""

    def __init__(self) -> None:
        self.needed: set[str] = set()  # of ``HEADERS``
        super().__init__()

    def write_header(self) -> None:
        pass

    def write_prefix(self) -> None:
        pass

    def write_kernel_autotune_defs_header(self) -> None:
        pass

    def write_triton_header_once(self) -> None:  # type: ignore[override]
        self.needed.add("write_triton_header_once")

    def write_get_raw_stream_header_once(self) -> None:  # type: ignore[override]
        self.needed.add("write_get_raw_stream_header_once")

    def next_kernel_suffix(self) -> str:
        return _KERNEL_NUMBER.format(next(self._names_iter))

    def written(self) -> dict[str, int]:
        """The size of each part of the wrapper that a body could write to."""
        counts = {}
        for name, value in vars(self).items():
            if isinstance(value, IndentedBuffer):
                counts[name] = len(value.getvalue())
            elif name not in ("src_to_kernel", "needed") and isinstance(value, (dict, list, set)):
                counts[name] = len(value)
        return counts


def compile_alone(graph: Any) -> BodyCode:
    """The code of a lowered body that is named ``BODY_NAME``. Raises ``NotApartError``.

    Call this while the wrapper of the program is being written, because it sets the options for a body's code.
    """
    with V.set_graph_handler(graph):
        around = _EmptyWrapper()
        graph.parent = types.SimpleNamespace(wrapper_code=around)
        before = around.written()
        with patch.object(AsyncCompile, "use_process_pool", staticmethod(lambda: False)):
            text = graph.codegen()[0].value
    wrapper = graph.wrapper_code
    if type(wrapper) is not SubgraphPythonWrapperCodegen:
        raise NotApartError(f"the wrapper is a {type(wrapper).__name__}")
    if around.written() != before:
        raise NotApartError("it writes to the program around it")
    code = _take_apart(text, wrapper.header.getvalue(), around.src_to_kernel)
    code.headers = sorted(around.needed)
    return code


def _take_apart(text: str, definitions: str, kernels: dict[str, str]) -> BodyCode:
    if not kernels:
        if definitions.strip():
            raise NotApartError("it defines something else than kernels")
        return BodyCode(text, [], "")
    if text.count(definitions) != 1:
        raise NotApartError("the definitions of its kernels are not in one piece")
    before, after = text.split(definitions)
    starts = []
    for name in kernels.values():
        beginning = f"\n{name} = "
        if definitions.count(beginning) != 1:
            raise NotApartError(f"{name} is not defined once")
        starts.append(_start_of_comment(definitions, definitions.index(beginning)))
    if starts != sorted(starts) or (starts and definitions[: starts[0]].strip()):
        raise NotApartError("something stands between its kernels")
    starts[:1] = [0]
    ends = [*starts[1:], len(definitions)]
    found = []
    for (source, name), start, end in zip(kernels.items(), starts, ends, strict=True):
        stem = _KERNEL_NAME.fullmatch(name)
        if stem is None:
            raise NotApartError(f"{name} has no number")
        found.append(Kernel(stem[1], source, definitions[start:end]))
    return BodyCode(before, found, after)


def _start_of_comment(text: str, end: int) -> int:
    """Where the empty line begins that stands before the comment above the line break at ``end``."""
    while text[:end].rpartition("\n")[2].startswith("#"):
        end = text.rindex("\n", 0, end)
    return end - 1


def link(code: BodyCode, wrapper: Any, name: str) -> str:
    """The text of a body for the program of ``wrapper``, in which the body is named ``name``."""
    root = wrapper.get_root_graph() if isinstance(wrapper, SubgraphPythonWrapperCodegen) else wrapper
    names = {BODY_NAME: name}  # a name in the body -> the same thing's name in the program
    new: dict[str, str] = {}  # the name in the program of a kernel that it has not -> its definition
    for number, kernel in enumerate(code.kernels):
        known = root.src_to_kernel.get(kernel.source)
        if known is None:
            known = root.src_to_kernel[kernel.source] = kernel.stem + root.next_kernel_suffix()
            new[known] = kernel.definition
        names[kernel.stem + _KERNEL_NUMBER.format(number)] = known
    for header in code.headers:
        getattr(root, header)()

    def named(text: str) -> str:
        for own, known in names.items():
            text = text.replace(own, known)
        return text

    definitions = [_of_program(named(definition), known) for known, definition in new.items()]
    return "".join((named(code.before), *definitions, named(code.after)))


def _of_program(definition: str, name: str) -> str:
    """The definition of the kernel ``name``. A kernel of Triton goes to the compiler, and says where its code lies."""
    comment, equals, job = definition.partition(f"\n{name} = ")
    if not job.startswith(TRITON_JOB):
        return definition
    own_name, source = arguments_of(job)
    compile_by_triton(own_name, source)
    path = get_path(code_hash(source.strip()), "py")[2]

    def line(found: re.Match[str]) -> str:
        return found[1] + (path if os.path.isabs(found[2]) else os.path.relpath(path, cache_dir()))

    return _KERNEL_PATH.sub(line, comment) + equals + job
