"""Overlay of torch._inductor.cpu_vec_isa: probes the C++ compiler while AOTAutograd runs.

Note [The compiler is asked early]
Before Inductor writes its first loop for the CPU it checks which vector instructions work: for each set that the
processor has, it compiles a small program and loads it. If the cache has no compiled kernel, that takes seconds in
which nothing else is done. The results do not depend on the program. So a thread starts these checks when Inductor gets
a graph with calls of regions, and Inductor's own check waits for those that still run. The time in between, longer for
a deep model than for a shallow one, overlaps with that of the C++ compiler.

Only a positive result counts, and only for the compiler that is then in use. A negative one may have a cause that the
thread cannot know (a cache folder that has been removed), so stock checks again. The thread is not started if waiting
costs little (a cache folder in use has the compiled programs), for a graph without tensors on the CPU, or twice in a
process. A process that was forked meanwhile has no thread to wait for. An error while starting the thread is only
logged: the program may not need the results, and stock can check.

The thread imports nothing. Importing setuptools, which is needed, changes ``sys.meta_path`` for a while, and an import
in another thread at that time may miss a finder.
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

# Modules that a check imports. The first imports setuptools.
_NEEDED = ("torch.utils.cpp_extension", "torch._inductor.codecache", "torch._inductor.cpp_builder")
_Key = tuple[int, str, str, str]
# (process, compiler, instructions, program compiled for them) -> whether they work
_answers: dict[_Key, Future[bool]] = {}
# Whether this thread runs the checks.
_here = threading.local()


def ask_early(graph: Any, inputs: Any) -> None:
    """Starts the checks in the background if that is worth it for ``graph``. Returns at once."""
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
    # Options of Inductor belong to a context, so the thread runs in a copy of this one.
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_ask, asked), name="what the C++ compiler can do", daemon=True).start()
    # Only now, because a thread that did not start gives no answer.
    _answers.update(found)


def known_to_work(isa: VecISA, code: str) -> bool:
    """Whether ``isa`` was checked early and works. Waits for the result."""
    if not _answers or getattr(_here, "asks", False):
        return False
    answer = _answers.get(_key(isa, code))
    return answer is not None and answer.result()


def _key(isa: VecISA, code: str) -> _Key:
    from torch._inductor.cpp_builder import get_cpp_compiler  # which imports this module

    # Stock names the compiled program's file after this fingerprint.
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
        except BaseException:  # a compile waits for the answer, whatever the error
            works = False
        answer.set_result(works)


@replaces("VecISA.check_build")
def check_build(self: Any, code: str) -> bool:
    if known_to_work(self, code):
        return True
    return stock("torch._inductor.cpu_vec_isa:VecISA.check_build")(self, code)  # type: ignore[no-any-return]
