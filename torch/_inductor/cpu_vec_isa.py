"""Overlay of torch._inductor.cpu_vec_isa: what the C++ compiler can do is found out during AOTAutograd.

Note [The compiler is asked early]
Before Inductor writes its first loop for the CPU it asks which vector instructions work here: it compiles a small
program for each that the processor has, and loads it.  Where no kernel has been compiled before, that takes seconds,
in which nothing else is done.  The answers do not depend on the program.  So they are sought in the background from
when Inductor gets a graph with calls of regions, and the question waits for the rest.  A deep model spends more time
before it comes to that question than a shallow one; now both spend it in the shadow of the compiler.

Only a yes counts, and only of the compiler that is then asked.  A no may come of what the background cannot know (a
cache folder that is gone by then), and stock asks again.  Nothing is asked where it costs little to wait (a cache
folder in use has the compiled programs), for a graph without tensors on the CPU, or twice in a process.  A process that
was forked meanwhile has no one to wait for.  What stands in the way of asking is no fault of the program, which may
need no answer: it is left to stock.

The background imports nothing: setuptools, which is needed, changes ``sys.meta_path`` for a while, and an import in
another thread at that time can pass over a finder.
"""

from __future__ import annotations

import contextvars
import importlib
import logging
import os
import threading
from concurrent.futures import Future
from typing import Any

import torch
from torch._higher_order_ops.region_metadata import has_calls
from torch._inductor import config
from torch._inductor.cpu_vec_isa import (
    VecISA,
    _get_isa_dry_compile_fingerprint,
    supported_vec_isa_list,
    x86_isa_checker,
)
from torch._inductor.runtime.runtime_utils import cache_dir
from torch.fx import GraphModule

from torch_regions.overlay import replaces, stock


log = logging.getLogger(__name__)

# What the question imports.  The first brings setuptools.
_NEEDED = ("torch.utils.cpp_extension", "torch._inductor.codecache", "torch._inductor.cpp_builder")
_Key = tuple[int, str, str, str]
# process, compiler, instructions and program to compile for them -> whether they work
_answers: dict[_Key, Future[bool]] = {}
# Whether this is the thread that asks.
_here = threading.local()


def ask_early(graph: Any, inputs: Any) -> None:
    """Begins to find out what works here, if that is worth it for ``graph``.  Returns at once."""
    if _answers:
        return
    try:
        if _worth_it(graph, inputs):
            _begin()
    except Exception as error:
        log.info("what the C++ compiler can do is not asked early: %r", error)


def _begin() -> None:
    for module in _NEEDED:
        importlib.import_module(module)
    has = set(x86_isa_checker())
    code = VecISA._avx_code
    asked = [(isa, code, Future[bool]()) for isa in supported_vec_isa_list if has.issuperset(str(isa).split())]
    found = {_key(isa, code): answer for isa, code, answer in asked}
    # With the options that are set here: they are of this context.
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_ask, asked), name="what the C++ compiler can do", daemon=True).start()
    # Not before: a thread that could not be started gives no answer.
    _answers.update(found)


def known_to_work(isa: VecISA, code: str) -> bool:
    """Whether ``isa`` was asked for early, and works.  Waits for the answer."""
    if not _answers or getattr(_here, "asks", False):
        return False
    answer = _answers.get(_key(isa, code))
    return answer is not None and answer.result()


def _key(isa: VecISA, code: str) -> _Key:
    from torch._inductor.cpp_builder import get_cpp_compiler  # which imports this module

    # Stock names the file of the compiled program after the second of these.
    return os.getpid(), _get_isa_dry_compile_fingerprint(str(get_cpp_compiler())), str(isa), code


def _worth_it(graph: Any, inputs: Any) -> bool:
    return (
        config.cpp.vec_isa_ok is None
        and isinstance(graph, GraphModule)
        and has_calls(graph.graph)
        and any(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in inputs)
        and not os.listdir(cache_dir())
    )


def _ask(asked: list[tuple[VecISA, str, Future[bool]]]) -> None:
    _here.asks = True
    for isa, code, answer in asked:
        try:
            works = isa.check_build(code)
        except BaseException:  # whatever it is, a compile waits for an answer
            works = False
        answer.set_result(works)


@replaces("VecISA.check_build")
def check_build(self: Any, code: str) -> bool:
    if known_to_work(self, code):
        return True
    return stock("torch._inductor.cpu_vec_isa:VecISA.check_build")(self, code)  # type: ignore[no-any-return]
