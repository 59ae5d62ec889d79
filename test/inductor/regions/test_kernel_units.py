"""Kernels that share a file: each library is the one that its kernel would have alone, and what cannot share does not."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch._inductor import config
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.cpp_builder import CppBuilder
from torch._inductor.exc import CppCompileError
from torch._inductor.regions import kernel_units
from torch._inductor.runtime.runtime_utils import cache_dir
from torch._inductor.utils import fresh_cache


_numbers = itertools.count()


def source(operator: str, before: str = "") -> str:
    """A kernel that no other call has made, so that the cache does not know it."""
    return f"""
#include <torch/csrc/inductor/cpp_prefix.h>
{before}
// {next(_numbers)}
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0)
{{
    for(int64_t x0=static_cast<int64_t>(0LL); x0<static_cast<int64_t>(4LL); x0+=static_cast<int64_t>(1LL))
    {{
        auto tmp0 = in_ptr0[static_cast<int64_t>(x0)];
        out_ptr0[static_cast<int64_t>(x0)] = {operator};
    }}
}}
"""


TYPES = ["const float*", "float*"]
OPERATORS = {"tmp0 + 1": 4.0, "std::sqrt(tmp0 + 1)": 2.0, "tmp0 * tmp0": 9.0}


@pytest.fixture(scope="module", autouse=True)
def _one_cache():
    # The first kernel of a cache has its header compiled, which takes longer than all that is tested here.
    with fresh_cache():
        submitted([source("tmp0 - 1")])[0]()
        yield


@pytest.fixture
def built():
    """The libraries that the compiler makes."""
    paths, build = [], CppBuilder.build

    def seen(builder):
        paths.append(Path(builder.get_target_file_path()).name)
        build(builder)

    with patch.object(CppBuilder, "build", seen):
        yield paths


def submitted(sources):
    """For each of ``sources``, which are given to the compiler together: what waits for its function."""
    load = CppPythonBindingsCodeCache.load_pybinding_async
    return [load(TYPES, text, submit_fn=kernel_units.submit) for text in sources]


def loaded(*sources):
    return [get() for get in submitted(sources)]


def of_all():
    return [source(operator) for operator in OPERATORS]


def of_three(kernel) -> float:
    x, out = torch.full((4,), 3.0), torch.zeros(4)
    kernel(x, out)
    assert (out == out[0]).all()
    return out[0].item()


def test_kernels_that_wait_are_compiled_in_one_run(built):
    with config.patch(compile_threads=2):
        assert [of_three(kernel) for kernel in loaded(*of_all())] == list(OPERATORS.values())
    assert built == ["unit.so"]
    assert not list(Path(cache_dir()).rglob("unit*")), "the file for all of them is left"


def test_machine_code_is_that_of_a_file_of_its_own():
    if shutil.which("nm") is None:
        pytest.skip("there is no nm")

    def sizes(function):
        run = ["nm", "-S", function.__self__.__file__]
        rows = map(str.split, subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines())
        return {row[3]: row[1] for row in rows if len(row) == 4}

    with config.patch(compile_threads=2):
        together = sizes(loaded(*of_all())[0])
    alone = [CppPythonBindingsCodeCache.load_pybinding(TYPES, text) for text in of_all()]
    in_one = [size for name, size in together.items() if re.fullmatch(r"kernel_\d+", name)]
    assert sorted(sizes(kernel)["kernel"] for kernel in alone) == sorted(in_one)


def test_a_library_serves_a_process_without_regions():
    sources = of_all()
    loaded(*sources)
    program = """
import json, sys, torch
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.cpp_builder import CppBuilder
build = CppBuilder.build
def seen(builder):
    assert not builder.get_target_file_path().endswith(".main.so"), "it is compiled again"
    build(builder)
CppBuilder.build = seen
types, sources = json.loads(sys.argv[1])
for source in sources:
    x, out = torch.full((4,), 3.0), torch.zeros(4)
    CppPythonBindingsCodeCache.load_pybinding(types, source)(x, out)
    print(out[0].item())
"""
    environment = {**os.environ, "TORCH_REGIONS": "0", "TORCHINDUCTOR_CACHE_DIR": cache_dir()}
    run = [sys.executable, "-c", program, json.dumps([TYPES, sources])]
    out = subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout
    assert [float(line) for line in out.split()] == list(OPERATORS.values())


def test_a_file_that_does_not_compile_is_taken_apart(built):
    with patch.object(kernel_units, "_source_of", lambda unit: "#error no"):
        assert [of_three(kernel) for kernel in loaded(*of_all())] == list(OPERATORS.values())
    assert built[0] == "unit.so"
    assert len(built) == 1 + len(OPERATORS)


def test_functions_with_one_name_have_a_namespace_each(built):
    more = "static inline float more(float x) {{ return x * {}; }}".format
    assert [of_three(kernel) for kernel in loaded(*(source("more(tmp0)", more(n)) for n in (2, 5)))] == [6.0, 15.0]
    assert built == ["unit.so"]


def test_functions_with_one_name_in_c_are_compiled_apart(built):
    # A function of C has one name in all namespaces.
    more = 'extern "C" inline float more(float x) {{ return x * {}; }}'.format
    assert [of_three(kernel) for kernel in loaded(*(source("more(tmp0)", more(n)) for n in (2, 5)))] == [6.0, 15.0]
    assert "unit.so" not in built


def test_a_kernel_with_macros_is_compiled_alone(built):
    for directive in ("#undef PY_SSIZE_T_CLEAN", "#if 1", "  # define A", "#include <map>", "#pragma GCC optimize"):
        assert kernel_units._includes_of(source("tmp0", f"int x;\n{directive}")) is None
    define = "int x;\n#define tmp9 {}".format
    sources = [source(operator, define(n)) for n, operator in enumerate(("tmp0 + tmp9", "tmp0 * 2 + tmp9"))]
    assert [of_three(kernel) for kernel in loaded(*sources)] == [3.0, 7.0]
    assert "unit.so" not in built


def test_kernels_that_include_other_headers_are_compiled_apart(built):
    other = [source(operator, "#include <numeric>") for operator in ("-tmp0", "tmp0 - 3")]
    kernels = loaded(source("tmp0 + 1"), other[0], source("tmp0 * 2"), other[1])
    assert [of_three(kernel) for kernel in kernels] == [4.0, -3.0, 6.0, 0.0]
    assert built == ["unit.so"] * 2


def test_a_large_kernel_is_compiled_alone(built):
    with patch.object(kernel_units, "LARGE", 100):
        loaded(source("tmp0 + 1"), source("tmp0 * 2"))
    assert "unit.so" not in built


def test_a_kernel_that_does_not_compile_has_an_error_of_its_own():
    right, wrong = submitted([source("tmp0 + 1"), source("no_such_name")])
    assert of_three(right()) == 4.0
    with pytest.raises(CppCompileError, match="no_such_name"):
        wrong()


def test_what_another_process_has_compiled_is_not_compiled(built):
    asked = submitted(of_all())
    for kernel in list(kernel_units._waiting.values()):
        kernel.compile_alone()
    built.clear()
    assert [of_three(get()) for get in asked] == list(OPERATORS.values())
    assert not built


def test_a_kernel_that_is_asked_for_twice_is_locked_once(built):
    """A compile was interrupted before its kernels were compiled, and Inductor's caches were cleared since."""
    texts = [source(operator) for operator in OPERATORS]
    before = submitted(texts)
    CppPythonBindingsCodeCache.cache_clear()
    with patch.object(kernel_units, "LOCK_TIMEOUT", 0.1):
        for get in (*submitted(texts), *before):
            get()
    assert built == ["unit.so"]


def test_what_is_no_kernel_goes_to_the_threads():
    done = []
    for worker in (lambda: done.append(1), functools.partial(done.append, 1)):
        kernel_units.submit(worker).result()
    assert done == [1, 1]


@pytest.mark.parametrize("count", [1, 3, 4, 8, 17, 40, 64])
@pytest.mark.parametrize("threads", [2, 32])
def test_units_hold_each_kernel_once(count, threads):
    class Kernel:
        def __init__(self, size):
            self.source = "x" * size

    kernels = [Kernel(100 + 37 * i % 1000) for i in range(count)]
    units = kernel_units._units(kernels, threads)
    assert sorted(map(id, sum(units, []))) == sorted(map(id, kernels))
    assert all(0 < len(unit) <= kernel_units.MOST_OF_UNIT for unit in units)
    assert len(units) == max(1, min(threads, count // kernel_units.LEAST_OF_UNIT), -(-count // 16))
