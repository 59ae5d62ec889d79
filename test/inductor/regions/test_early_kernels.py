"""Kernels of a body are compiled from when their code is known, each once, and as the program asks for them."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch._inductor import async_compile, config
from torch._inductor.codecache import CppPythonBindingsCodeCache, PyCodeCache
from torch._inductor.cpp_builder import CppBuilder
from torch._inductor.exc import CppCompileError
from torch._inductor.regions import early_kernels as region_kernels
from torch._inductor.runtime.runtime_utils import cache_dir
from torch._inductor.utils import fresh_cache


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x)))).sigmoid()


class Seen:
    """What was compiled, when a program was written, and what programs asked for."""

    def __init__(self):
        self.built, self.jobs, self.asked = [], [], []

    def program_written(self, source, *args, **kwargs):
        if "async_compile" in source:
            self.jobs.append(set(CppPythonBindingsCodeCache.cache))
        return _write(source, *args, **kwargs)

    def build(self, builder):
        self.built.append(builder.get_target_file_path())
        return _build(builder)

    def pybinding(self, compiler, types, source):
        self.asked.append((tuple(types), source))
        return _pybinding(compiler, types, source)


_write, _build, _pybinding = PyCodeCache.write, CppBuilder.build, async_compile.AsyncCompile.cpp_pybinding


@pytest.fixture
def seen():
    seen = Seen()
    with (
        fresh_cache(),
        patch.object(PyCodeCache, "write", seen.program_written),
        patch.object(CppBuilder, "build", lambda builder: seen.build(builder)),
        patch.object(
            async_compile.AsyncCompile, "cpp_pybinding", lambda self, types, code: seen.pybinding(self, types, code)
        ),
    ):
        yield seen


def compiled_step(train=True, flag=True, layers=4):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(*(Block() for _ in range(layers))), torch.randn(4, 8)
    expected = model(x)
    with torch._dynamo.config.patch(use_graph_deduplication=flag), torch.set_grad_enabled(train):
        result = torch.compile(model, fullgraph=True)(x)
        if train:
            result.sum().backward()
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("train", [False, True])
def test_each_kernel_is_compiled_once_and_before_the_program_is_written(seen, train, caches):
    with config.patch(force_disable_caches=not caches):
        compiled_step(train)
    assert len(seen.jobs) == (2 if train else 1)
    assert all(seen.jobs), "nothing was begun"
    assert len(set(seen.asked)) == len(seen.asked) > 0
    libraries = set(map(str, Path(cache_dir()).rglob("*.main.so")))
    assert len(libraries) == len(seen.asked)
    alone = [path for path in seen.built if path in libraries]
    assert len(alone) == len(set(alone)) < len(libraries), "no two were compiled together"


def test_programs_without_regions_are_compiled_as_ever(seen):
    compiled_step(flag=False)
    assert not seen.jobs[0]


def test_nothing_is_begun_without_worker_threads(seen):
    with config.patch(compile_threads=1):
        compiled_step(train=False)
    assert not seen.jobs[0]


def test_a_kernel_that_carries_its_name_is_compiled_with_the_program(seen):
    with (
        config.patch({"cpp.enable_kernel_profile": True}),
        patch.object(region_kernels.log, "info", side_effect=AssertionError),
    ):
        compiled_step(train=False)


def test_a_kernel_that_cannot_be_compiled_is_told_by_the_program(seen):
    with (
        patch.object(seen, "build", side_effect=CppCompileError(["c++"], "no such thing")),
        pytest.raises(Exception, match="no such thing"),
    ):
        compiled_step(train=False)


def test_what_is_no_job_is_left_to_the_program(seen):
    with patch.object(region_kernels, "arguments_of", side_effect=SyntaxError):
        compiled_step(train=False)
    assert not seen.jobs[0]
