"""Sends the kernels of a program with regions to the C++ compiler as soon as their code is known.

Note [Kernels are compiled early]
Inductor starts to compile kernels when the code of the whole program is written and loaded. In a program with calls of
regions many kernels are known long before that: the code of a body is generated at the first call, and all other calls
follow. So each kernel is submitted when it is defined, kernels of the graph around the calls included (a body does not
define a kernel that the graph has already defined). Later, the kernel's line in the program finds the job running,
because Inductor keys jobs by source and compiler command. If the key differed, it would only start a job of its own.

A kernel is not submitted without worker threads (the compile would wait here), or if its code contains its name, which
changes in the program (Note [A body is an object file] in regions/object_code.py).
"""

from __future__ import annotations

import ast
import logging
from typing import Any

from torch._inductor import ir
from torch._inductor.async_compile import get_compile_threads
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.regions.kernel_units import submit
from torch._inductor.virtualized import V


log = logging.getLogger(__name__)

_JOB = "async_compile.cpp_pybinding("


def compile_early(name: str, definition: str) -> None:
    """Starts to compile the kernel ``name``, which the program being written defines by ``definition``."""
    if not _is_worth_it(name, definition):
        return
    try:
        types, source = _arguments(definition)
        CppPythonBindingsCodeCache.load_pybinding_async(types, source, submit_fn=submit)
    except Exception as error:
        # The program also compiles the kernel, and reports the error then.
        log.info("%s is not compiled early: %s", name, error)


def _is_worth_it(name: str, definition: str) -> bool:
    return (
        definition.startswith(_JOB)
        and name not in definition
        and get_compile_threads() > 1
        and _has_to_do_with_regions(V.graph)
    )


def _has_to_do_with_regions(graph: Any) -> bool:
    if not hasattr(graph, "calls_regions"):
        graph.calls_regions = any(isinstance(operation, ir.InvokeSubgraph) for operation in graph.operations)
    return graph.calls_regions or getattr(graph, "is_body_of_region", False)


def _arguments(definition: str) -> tuple[list[str], str]:
    """The arguments with which the program will call ``cpp_pybinding``."""
    call: Any = ast.parse(definition.strip(), mode="eval").body
    types, source = (ast.literal_eval(argument) for argument in call.args)
    return types, source
