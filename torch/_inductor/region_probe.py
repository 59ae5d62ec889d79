"""What the C++ compiler can do is found out while a program goes through AOTAutograd.

Note [The compiler is asked early]
Before Inductor writes its first loop for the CPU it asks which vector instructions work here: it compiles a small
program for each that the processor has, and loads it.  Where no kernel has been compiled before, that takes seconds,
in which nothing else is done.  The answers do not depend on the program.  So they are sought in the background from
when Inductor gets a graph with calls of regions, and the question waits for the rest.  A deep model spends more time
before it comes to that question than a shallow one; now both spend it in the shadow of the compiler.

Only a yes counts.  A no may come of what the background cannot know (a cache folder that is gone by then), and stock
asks again.  Nothing is asked where it costs little to wait (a cache folder in use has the compiled programs), for a
graph without tensors on the CPU, or twice in a process.  A process that was forked meanwhile has no one to wait for.
The background imports nothing: setuptools, which is needed, changes ``sys.meta_path`` for a while, and an import in
another thread at that time can pass over a finder.
"""

from __future__ import annotations

import contextvars
import importlib
import os
import threading
from concurrent.futures import Future
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.cpu_vec_isa import VecISA, supported_vec_isa_list, x86_isa_checker
from torch._inductor.runtime.runtime_utils import cache_dir
from torch.fx import GraphModule


# What the question imports.  The first brings setuptools.
_NEEDED = ("torch.utils.cpp_extension", "torch._inductor.codecache", "torch._inductor.cpp_builder")
# process, instructions and program to compile for them -> whether they work
_answers: dict[tuple[int, str, str], Future[bool]] = {}
# Whether this is the thread that asks.
_here = threading.local()


def ask_early(graph: Any, inputs: Any) -> None:
    """Begins to find out what works here, if that is worth it for ``graph``.  Returns at once."""
    if _answers or config.cpp.vec_isa_ok is not None or not _worth_it(graph, inputs):
        return
    for module in _NEEDED:
        importlib.import_module(module)
    has = set(x86_isa_checker())
    questions = [(isa, VecISA._avx_code) for isa in supported_vec_isa_list if has.issuperset(str(isa).split())]
    asked = [(isa, code, _answers.setdefault(_key(isa, code), Future())) for isa, code in questions]
    # With the options that are set here: they are of this context.
    context = contextvars.copy_context()
    asker = threading.Thread(target=context.run, args=(_ask, asked), name="what the C++ compiler can do", daemon=True)
    try:
        asker.start()
    except RuntimeError:  # the system has no thread for it: nobody would answer
        _answers.clear()


def known_to_work(isa: VecISA, code: str) -> bool:
    """Whether ``isa`` was asked for early, and works.  Waits for the answer."""
    answer = None if getattr(_here, "asks", False) else _answers.get(_key(isa, code))
    return answer is not None and answer.result()


def _key(isa: VecISA, code: str) -> tuple[int, str, str]:
    return os.getpid(), str(isa), code


def _worth_it(graph: Any, inputs: Any) -> bool:
    call = torch.ops.higher_order.invoke_subgraph
    return (
        isinstance(graph, GraphModule)
        and bool(graph.graph.find_nodes(op="call_function", target=call))
        and any(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in inputs)
        and not os.listdir(cache_dir())
    )


def _ask(asked: list[tuple[VecISA, str, Future[bool]]]) -> None:
    _here.asks = True
    for isa, code, answer in asked:
        try:
            works = isa.check_build(code)
        except BaseException:  # whatever it is, somebody waits for an answer
            works = False
        answer.set_result(works)
