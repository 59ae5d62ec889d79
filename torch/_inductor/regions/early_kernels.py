"""Sends the kernels of a program with regions to the C++ compiler as soon as their code is known.

Note [Kernels are compiled early]
Inductor starts to compile kernels when the code of the whole program is written and loaded. In a program with calls of
regions many kernels are known long before that: the code of a body is generated at the first call, and all other calls
follow. So each kernel is submitted when it is defined, kernels of the graph around the calls included (a body does not
define a kernel that the graph has already defined). Later, the kernel's line in the program finds the job running,
because Inductor keys jobs by source and compiler command. If the key differed, it would only start a job of its own.

Stock hands the kernels of Triton to its workers when they are defined. Those of a body that is generated apart follow
when it is linked, because their names are in their sources (Note [A body is an object file] in regions/object_code.py).

A kernel for C++ is not submitted without worker threads (the compile would wait here), or if its code contains its
name, which changes in the program.
"""

from __future__ import annotations

import ast
import logging
from typing import Any

from torch._inductor import ir
from torch._inductor.async_compile import AsyncCompile, get_compile_threads
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.regions.kernel_units import submit
from torch._inductor.virtualized import V


log = logging.getLogger(__name__)

_JOB = "async_compile.cpp_pybinding("
TRITON_JOB = "async_compile.triton("


def compile_early(name: str, definition: str) -> None:
    """Starts to compile the kernel ``name``, which the program being written defines by ``definition``."""
    if not _is_worth_it(name, definition):
        return
    try:
        types, source = arguments_of(definition)
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


def arguments_of(definition: str) -> list[Any]:
    """The arguments with which the program will call the function that compiles a kernel."""
    call: Any = ast.parse(definition.strip(), mode="eval").body
    return [ast.literal_eval(argument) for argument in call.args]


def compile_by_triton(name: str, source: str) -> None:
    """Hands a kernel to Triton's workers, if there are any: the program finds the job by its source."""
    if AsyncCompile.use_process_pool():
        AsyncCompile().triton(name, source)
