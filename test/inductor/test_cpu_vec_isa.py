"""What the C++ compiler can do is asked for early, and only a yes counts."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from unittest.mock import patch

import pytest
import torch
from testing import vectors
from testing.call_graphs import graph_with_a_call
from torch._inductor import config, cpu_vec_isa
from torch._inductor.cpu_vec_isa import VecISA
from torch._inductor.utils import fresh_cache


TESTS = os.path.dirname(os.path.dirname(__file__))
# Two of the sets of instructions that the processor has: each takes the C++ compiler two seconds.
HERE = vectors.of_the_processor()[-2:]
needs_vectors = pytest.mark.skipif(not HERE, reason="needs an x86 processor with vector instructions")


@pytest.fixture
def asked(monkeypatch, with_regions):
    """Answers as in a new process; they are left as they were."""
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", HERE)
    monkeypatch.setattr(cpu_vec_isa, "_answers", {})
    with config.patch({"cpp.vec_isa_ok": None}):
        yield cpu_vec_isa._answers


def ask(graph=None, inputs=None):
    cpu_vec_isa.ask_early(graph or graph_with_a_call(), [torch.ones(2)] if inputs is None else inputs)


@needs_vectors
def test_the_question_waits_for_the_early_answer(asked):
    loads, load = [], VecISA._probe_load

    def counted(isa, path):
        loads.append(str(isa))
        return load(isa, path)

    with fresh_cache(), patch.object(VecISA, "_probe_load", counted):
        ask()
        assert len(asked) == len(HERE)
        works = [isa.check_build(VecISA._avx_code) for isa in HERE]
        assert any(works)
        # A no is looked into again, a yes is not.
        assert [loads.count(str(isa)) for isa in HERE] == [1 if yes else 2 for yes in works]


@needs_vectors
def test_an_early_no_is_asked_again(asked):
    answers = iter([False] * len(HERE) + [True] * len(HERE))
    with fresh_cache(), patch.object(VecISA, "_probe_load", lambda isa, path: next(answers)):
        ask()
        for answer in asked.values():
            assert answer.result() is False
        assert HERE[0].check_build(VecISA._avx_code) is True


@needs_vectors
def test_a_cache_folder_that_is_gone_by_then_is_no_answer(asked):
    checks = []

    def gone(isa, path):
        checks.append(isa)
        raise FileNotFoundError(path)

    with fresh_cache(), patch.object(VecISA, "_probe_load", gone):
        ask()
        assert [answer.result() for answer in asked.values()] == [False] * len(HERE)
    assert len(checks) == len(HERE)
    assert not cpu_vec_isa.known_to_work(HERE[0], VecISA._avx_code)


@needs_vectors
def test_a_forked_process_waits_for_nobody(asked, monkeypatch):
    with fresh_cache(), patch.object(cpu_vec_isa.threading, "Thread"):
        ask()  # and no answer comes
    assert not any(answer.done() for answer in asked.values())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not cpu_vec_isa.known_to_work(HERE[0], VecISA._avx_code)


@needs_vectors
def test_nobody_waits_where_no_thread_could_be_started(asked):
    with fresh_cache(), patch.object(cpu_vec_isa.threading.Thread, "start", side_effect=RuntimeError):
        ask()
    assert not asked


@needs_vectors
def test_nobody_waits_where_the_user_stopped_it(asked):
    with fresh_cache(), patch.object(cpu_vec_isa.threading.Thread, "start", side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            ask()
    assert not asked


@pytest.mark.parametrize("fault", ["importlib.import_module", "os.listdir", "_key"])
def test_what_keeps_from_asking_is_no_fault_of_the_program(asked, fault):
    with fresh_cache(), patch(f"torch._inductor.cpu_vec_isa.{fault}", side_effect=OSError):
        ask()
    assert not asked


@needs_vectors
def test_an_answer_is_about_one_compiler(asked, tmp_path):
    """A wrapper of the same compiler, which says that it is of the same version, may not take the same options."""
    other = tmp_path / "compiler"
    other.write_text('#!/bin/sh\nexec g++ "$@"\n')
    other.chmod(0o755)
    with fresh_cache(), patch.object(VecISA, "_probe_load", lambda isa, path: True):
        ask()
        assert all(answer.result() for answer in asked.values())
        assert cpu_vec_isa.known_to_work(HERE[0], VecISA._avx_code)
        with config.patch({"cpp.cxx": (None, str(other))}):
            assert not cpu_vec_isa.known_to_work(HERE[0], VecISA._avx_code)


@needs_vectors
def test_whatever_ends_the_question_is_an_answer(asked):
    with fresh_cache(), patch.object(VecISA, "_probe_load", side_effect=SystemExit):
        ask()
        assert [answer.result(timeout=60) for answer in asked.values()] == [False] * len(HERE)


def without_calls():
    graph = torch.fx.Graph()
    graph.output(graph.placeholder("x"))
    return torch.fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    "given",
    [{"graph": without_calls()}, {"inputs": []}, {"inputs": [torch.ones(2, device="meta")]}],
    ids=["no calls", "no tensors", "not on the CPU"],
)
def test_nothing_is_asked_for_nothing(asked, given):
    with fresh_cache():
        ask(**given)
    assert not asked


def test_nothing_is_asked_where_the_user_has_answered(asked):
    with fresh_cache(), config.patch({"cpp.vec_isa_ok": True}):
        ask()
    assert not asked


def test_nothing_is_asked_where_kernels_were_compiled_before(asked):
    with fresh_cache():
        folder = cpu_vec_isa.cache_dir()
        open(os.path.join(folder, "kernel.so"), "w").close()
        ask()
    assert not asked


@needs_vectors
def test_options_of_the_caller_are_those_of_the_question(asked):
    seen = []

    def looked(isa, path):
        seen.append(config.cpp.cxx)
        return True

    compilers = copy.copy(config.cpp.cxx)
    with (
        fresh_cache(),
        config.patch({"cpp.cxx": [*compilers, "the last"]}),
        patch.object(VecISA, "_probe_load", looked),
    ):
        ask()
        assert all(answer.result() for answer in asked.values())
    assert [cxx[-1] for cxx in seen] == ["the last"] * len(HERE)


IMPORTS_BY_THREAD = """
import sys, threading, torch
import torch._inductor.compile_fx  # as when a graph is given to Inductor
from torch._inductor import cpu_vec_isa
from torch._inductor.utils import fresh_cache

looked_for = []

class Seen:
    def find_spec(self, name, path=None, target=None):
        looked_for.append((threading.current_thread(), name))

sys.path.insert(0, sys.argv[1])
from testing.call_graphs import graph_with_a_call
sys.meta_path.insert(0, Seen())
with fresh_cache():
    cpu_vec_isa.ask_early(graph_with_a_call(), [torch.ones(2)])
    assert any(answer.result() for answer in cpu_vec_isa._answers.values())
assert "setuptools" in sys.modules
print([name for thread, name in looked_for if thread is not threading.main_thread()])
"""


@needs_vectors
def test_the_background_imports_nothing():
    """Setuptools takes a finder of imports away, and an import in the main thread passed over the one behind it."""
    command = [sys.executable, "-c", IMPORTS_BY_THREAD, TESTS]
    environment = {**os.environ, vectors.VARIABLE: ""}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x)))).sigmoid()


@needs_vectors
def test_options_of_a_compile_are_those_of_the_question(asked):
    """They are set inside of Inductor's compiler; it asked before, with the options of the process."""
    seen, load = [], VecISA._probe_load

    def looked(isa, path):
        seen.append(config.cpp.cxx)
        return load(isa, path)

    model, x = torch.nn.Sequential(*(Block() for _ in range(4))), torch.randn(4, 8)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, options={"cpp.cxx": (*config.cpp.cxx, "the last")})
    with (
        fresh_cache(),
        torch._dynamo.config.patch(use_graph_deduplication=True),
        patch.object(VecISA, "_probe_load", looked),
        torch.no_grad(),
    ):
        torch.testing.assert_close(compiled(x), model(x))
        # Inductor did not wait for them, if it knew before.
        for answer in asked.values():
            answer.result()
    assert [cxx[-1] for cxx in seen[: len(HERE)]] == ["the last"] * len(HERE)


@needs_vectors
def test_a_compile_asks_early_and_is_right(asked):
    model = torch.nn.Sequential(*(Block() for _ in range(4)))
    x = torch.randn(4, 8)
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    VecISA._VecISA__bool__impl.cache_clear()
    torch._dynamo.reset()
    with fresh_cache(), torch._dynamo.config.patch(use_graph_deduplication=True), torch.no_grad():
        torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x))
    assert asked and all(answer.done() for answer in asked.values())
    assert cpu_vec_isa.valid_vec_isa_list() == [isa for isa in HERE if isa]
