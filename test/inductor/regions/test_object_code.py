"""Code for a GPU that is generated apart: what linking does to it. The code itself: test/inductor/test_cuda_code.py."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import pytest
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import code_hash, get_path
from torch._inductor.regions.object_code import HEADERS, BodyCode, Kernel, link
from torch._inductor.runtime.cache_dir_utils import cache_dir


OWN = "triton_poi_fused_add_regionkernel7c41_{}_"
SOURCE = "\nimport triton\n# = of {} in regionbody7c41\ndef {}(x): pass\n"


def kernel(number: int, path: str = "/of/another/machine.py") -> Kernel:
    name = OWN.format(number)
    comment = f"# kernel path: {path}\n#   %add : [num_users=1] = call_function\n"
    job = f"async_compile.triton({name!r}, '''{SOURCE.format(number, name)}''', device_str='cuda')"
    return Kernel("triton_poi_fused_add_", f"meaning {number}", f"\n\n{comment}{name} = {job}")


class Root:
    """The wrapper of a program, as far as a body's code touches it."""

    def __init__(self, **known: str) -> None:
        self.src_to_kernel = {f"meaning {number}": name for number, name in enumerate(known.values())}
        self.suffixes = iter("789")
        self.written: list[str] = []

    def next_kernel_suffix(self) -> str:
        return next(self.suffixes)

    def __getattr__(self, name: str) -> Any:
        return lambda: self.written.append(name)


def linked(code: BodyCode, root: Root) -> tuple[str, list[tuple[str, str]]]:
    jobs: list[tuple[str, str]] = []
    with (
        patch.object(AsyncCompile, "use_process_pool", staticmethod(lambda: True)),
        patch.object(AsyncCompile, "triton", lambda _, name, source: jobs.append((name, source))),
    ):
        return link(code, root, "subgraph_3"), jobs


def test_workers_are_given_the_source_that_the_program_has():
    """They know a kernel by its source, in which its name is."""
    code = BodyCode("\ndef regionbody7c41(args):", [kernel(0)], f"\n    {OWN.format(0)}.run()")
    text, jobs = linked(code, Root())
    before, source, after = text.split("'''")
    assert jobs == [("triton_poi_fused_add_7", source)]
    assert "regionkernel7c41" not in text and "regionbody7c41" not in text
    assert before.endswith("triton_poi_fused_add_7 = async_compile.triton('triton_poi_fused_add_7', ")
    assert after.endswith("triton_poi_fused_add_7.run()")


def test_a_kernel_that_the_program_has_is_no_job():
    code = BodyCode("", [kernel(0), kernel(1)], "".join(f"\n{OWN.format(n)}.run()" for n in range(2)))
    text, jobs = linked(code, Root(first="triton_of_program_2"))
    assert [name for name, _ in jobs] == ["triton_poi_fused_add_7"]
    assert "triton_of_program_2.run()" in text and text.count("async_compile.triton(") == 1


@pytest.mark.parametrize("relative", [False, True])
def test_the_path_of_a_kernel_is_that_of_its_own_source(relative):
    code = BodyCode("", [kernel(0, "of/another/machine.py" if relative else "/of/another/machine.py")], "")
    text, ((_, source),) = linked(code, Root())
    path = get_path(code_hash(source.strip()), "py")[2]
    assert f"# kernel path: {os.path.relpath(path, cache_dir()) if relative else path}\n" in text


def test_the_head_of_the_program_is_told_what_a_body_needs():
    root = Root()
    linked(BodyCode("", [], "", headers=list(HEADERS)), root)
    assert root.written == list(HEADERS)
    root = Root()
    linked(BodyCode("", [], ""), root)
    assert root.written == []
