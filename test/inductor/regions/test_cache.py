"""Bodies that are found again: the code is what lowering would have made, and what is kept badly is not used."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.body_keys import twice
from testing.kernels import fresh_graphs
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.regions import bodies as region_bodies
from torch._inductor.regions import cache as region_cache
from torch._inductor.regions.cache import FOLDER, BodyBypass, BypassReason
from torch._inductor.regions.object_code import NotApartError
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.utils import run_and_get_code


F = torch.nn.functional


@pytest.fixture(autouse=True)
def own_cache() -> Iterator[None]:
    with fresh_graphs(), torch._functorch.config.patch(enable_autograd_cache=False):
        region_cache._said.clear()
        yield


def tensors() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(4, 8, dtype=torch.float64), torch.randn(8, 8, dtype=torch.float64)


def compile_and_check(program: Callable[..., Any], *args: torch.Tensor) -> tuple[dict[str, int], list[str]]:
    """Compiles a program that no cache has as a whole, compares it with eager; what became of bodies, and the code."""
    shutil.rmtree(os.path.join(cache_dir(), "fxgraph"), ignore_errors=True)
    torch._dynamo.reset()
    counters.clear()
    theirs, ours = ([x.clone().requires_grad_(x.requires_grad) for x in args] for _ in range(2))
    expected = program(*theirs)
    actual, codes = run_and_get_code(torch.compile(program, dynamic=False), *ours)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(ours, theirs)
    # The first line numbers the graphs of a process; comments tell where the code was first seen.
    return dict(counters["region_bodies"]), [re.sub(r"(?m)^ *# .*\n", "", code) for code in codes]


def entries() -> list[Path]:
    return sorted(path for path in Path(cache_dir(), FOLDER).rglob("*") if path.is_file())


def gated(x, w):
    return F.gelu(x @ w) * 2.0 + x


def lifted(x, w):
    return F.gelu(x @ w) * 3.0 + x


def summed(x, w):
    y = torch.sin(x) * 3 + x
    return (y @ w).softmax(-1) + y.sum(0), x.cos() * 2


def without_kernels(x, w):
    return torch.mm(x, w)


def written(x, w):
    y = x @ w
    x.mul_(0.5)
    return y.sin() + x


def convolved(x, w):
    return F.conv1d(x[None], w[:4, :4, None])[0].relu() + x


@pytest.mark.parametrize("body", [gated, summed, without_kernels, written, convolved], ids=lambda f: f.__name__)
def test_found_code_is_what_lowering_makes(body):
    program = twice(body)
    with config.patch(fx_graph_cache=False):
        told, plain = compile_and_check(program, *tensors())
    assert told == {"lowered": 1, "OFF": 1} and not entries()
    told, fresh = compile_and_check(program, *tensors())
    assert told == {"lowered": 1} and len(entries()) == 1
    told, found = compile_and_check(program, *tensors())
    assert told == {"found": 1}
    assert plain == fresh == found


def one_way(x, w):
    first = gated_region(gated_region(x, w), w)
    second = summed_region(first, w)
    return first, summed_region(second[0], w)


def other_way(x, w):
    # A kernel of the program's own comes first, and one of the program's is the same as one of a body's.
    y = torch.tanh(x) + 1
    z = F.gelu(x @ w) * 2.0 + x
    second = summed_region(summed_region(y, w)[1], w)
    return z, second, gated_region(gated_region(second[0], w), w)


gated_region = torch.compiler.nested_compile_region(gated)
summed_region = torch.compiler.nested_compile_region(summed)


def test_kernels_of_two_bodies_and_a_program():
    """Names of kernels do not clash, and equal kernels are one, wherever the bodies come from."""
    with config.patch(fx_graph_cache=False):
        plain = compile_and_check(other_way, *tensors())[1]
    assert compile_and_check(twice(gated), *tensors())[0] == {"lowered": 1}
    told, mixed = compile_and_check(other_way, *tensors())
    assert told == {"found": 1, "lowered": 1}
    # Here other operands die in the calls of one of them (test_region_donation.py).
    assert compile_and_check(one_way, *tensors())[0] == {"found": 2, "lowered": 1}
    told, found = compile_and_check(other_way, *tensors())
    assert told == {"found": 2}
    assert plain == mixed == found


def test_another_meaning_is_another_body():
    assert compile_and_check(twice(gated), *tensors())[0] == {"lowered": 1}
    assert compile_and_check(twice(lambda x, w: F.gelu(x @ w) * 2.5 + x), *tensors())[0] == {"lowered": 1}
    assert compile_and_check(twice(gated), *(x.float() for x in tensors()))[0] == {"lowered": 1}
    assert compile_and_check(twice(lambda left, right: gated(left, right)), *tensors())[0] == {"found": 1}


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "changed"])
def test_damaged_entry(damage, caplog):
    program = twice(gated)
    compile_and_check(program, *tensors())
    (entry,) = entries()
    good = entry.read_bytes()
    damaged = {
        "truncated": good[:-100],
        "empty": b"",
        "garbage": b"not an entry",
        "changed": good.replace(b"0.5", b"0.6"),
    }[damage]
    assert damaged != good
    entry.write_bytes(damaged)
    with caplog.at_level(logging.WARNING, logger=region_cache.__name__):
        assert compile_and_check(program, *tensors())[0] == {"lowered": 1}
    (record,) = (r for r in caplog.records if r.name == region_cache.__name__)
    assert "cannot be read" in record.getMessage()
    # It was replaced.
    assert entry.read_bytes() == good
    assert compile_and_check(program, *tensors())[0] == {"found": 1}


def test_entry_under_another_key(caplog):
    """Moved or copied: the entry is whole, and another body's, with operands and results of the same number and shapes."""
    assert compile_and_check(twice(gated), *tensors())[0] == {"lowered": 1}
    (theirs,) = entries()
    assert compile_and_check(twice(lifted), *tensors())[0] == {"lowered": 1}
    (ours,) = (path for path in entries() if path != theirs)
    good = ours.read_bytes()
    shutil.copy(theirs, ours)
    with caplog.at_level(logging.WARNING, logger=region_cache.__name__):
        assert compile_and_check(twice(lifted), *tensors())[0] == {"lowered": 1}
    (record,) = (r for r in caplog.records if r.name == region_cache.__name__)
    assert "of another key" in record.getMessage()
    assert ours.read_bytes() == good
    assert compile_and_check(twice(lifted), *tensors())[0] == {"found": 1}


def test_entries_of_another_version_are_left_alone():
    """The overlay's digest is in the tag, as what a user puts there is."""
    assert compile_and_check(twice(gated), *tensors())[0] == {"lowered": 1}
    (ours,) = entries()
    good = ours.read_bytes()
    with torch.compiler.config.patch(cache_key_tag="another"):
        assert compile_and_check(twice(gated), *tensors())[0] == {"lowered": 1}
        assert len(entries()) == 2
    assert ours.read_bytes() == good
    assert compile_and_check(twice(gated), *tensors())[0] == {"found": 1}


def _without_results(entry):
    entry["outputs"] = []


def _buffer_that_is_not_there(entry):
    entry["outputs"][0]["buffer"] = 7


def _write_to_what_is_no_operand(entry):
    entry["mutated"] = [9]


def _aligned_what_is_no_operand(entry):
    entry["aligned"] = [9]


def _header_that_is_none(entry):
    for code in entry["codes"].values():
        code["headers"] = ["__init__"]


def _result_without_memory(entry):
    entry["outputs"][0]["buffer"] = None


def _code_that_is_no_text(entry):
    for code in entry["codes"].values():
        code["before"] = None


@pytest.mark.parametrize(
    "change",
    [
        _without_results,
        _buffer_that_is_not_there,
        _write_to_what_is_no_operand,
        _aligned_what_is_no_operand,
        _header_that_is_none,
        _result_without_memory,
        _code_that_is_no_text,
    ],
)
def test_entry_that_would_fail_after_loading(change, caplog):
    """With the right digest: it counts as one that cannot be read."""
    program = twice(gated)
    compile_and_check(program, *tensors())
    (path,) = entries()
    good = path.read_bytes()
    entry = json.loads(good.partition(b"\n")[2])
    change(entry)
    content = json.dumps(entry).encode()
    path.write_bytes(region_cache._digest(path.name, content) + b"\n" + content)
    with caplog.at_level(logging.WARNING, logger=region_cache.__name__):
        assert compile_and_check(program, *tensors())[0] == {"lowered": 1}
    assert len([r for r in caplog.records if r.name == region_cache.__name__]) == 1
    assert path.read_bytes() == good
    assert compile_and_check(program, *tensors())[0] == {"found": 1}


def test_entry_that_cannot_be_read_is_removed(monkeypatch, caplog):
    """Also where no other takes its place: the next process need not be warned again."""
    compile_and_check(twice(gated), *tensors())
    (path,) = entries()
    path.write_bytes(b"not an entry")

    def refuse(graph):
        raise NotApartError("a test")

    monkeypatch.setattr(region_bodies, "compile_alone", refuse)
    assert compile_and_check(twice(gated), *tensors())[0] == {"lowered": 2, "CODE": 1}
    assert not entries() and "cannot be read" in caplog.text


def test_folder_that_cannot_be_written(caplog):
    Path(cache_dir()).mkdir(exist_ok=True)
    Path(cache_dir(), FOLDER).write_text("a file in the place of the folder")
    with caplog.at_level(logging.WARNING, logger=region_cache.__name__):
        assert compile_and_check(twice(gated), *tensors())[0] == {"lowered": 1}
    assert "cannot be written" in caplog.text


def test_code_that_is_not_apart(monkeypatch):
    """Such a body is lowered anew for its program, which comes out as without a cache."""
    with config.patch(fx_graph_cache=False):
        plain = compile_and_check(twice(summed), *tensors())[1]

    def refuse(graph):
        raise NotApartError("a test")

    monkeypatch.setattr(region_bodies, "compile_alone", refuse)
    told, code = compile_and_check(twice(summed), *tensors())
    assert told == {"lowered": 2, "CODE": 1} and not entries()
    assert code == plain


def test_writes_to_the_program_are_noticed(monkeypatch):
    from torch._inductor.codegen.wrapper import SubgraphPythonWrapperCodegen

    stock = SubgraphPythonWrapperCodegen.define_kernel

    def define_kernel(self, name, *args, **kwargs):
        self.parent_wrapper.header.writeline("# something of a body's")
        stock(self, name, *args, **kwargs)

    monkeypatch.setattr(SubgraphPythonWrapperCodegen, "define_kernel", define_kernel)
    assert compile_and_check(twice(gated), *tensors())[0] == {"lowered": 2, "CODE": 1}
    assert not entries()


def constant(x, w):
    return (x @ w).sin() + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])


def pooled(x, w):
    return F.fractional_max_pool2d(x[None, None] @ w, 2, output_size=2)


def sorted_(x, w):
    return torch.sort(x @ w)[0] + 1


def test_constant_made_by_lowering():
    told, _ = compile_and_check(twice(constant), *tensors())
    assert told.keys() <= {"lowered", "ATTRIBUTE", "CONSTANT"} and not entries()


def test_unusual_nodes(monkeypatch):
    """A node of a kind that is not known is a reason to lower the body for its program."""
    known = region_cache._NODES - {torch._inductor.ir.ExternKernelOut}
    monkeypatch.setattr(region_cache, "_NODES", known)
    told, _ = compile_and_check(twice(gated), *tensors())
    assert told == {"lowered": 2, "NODE": 1} and not entries()


def test_calls_of_operators():
    """Operators that Inductor calls, with several results and without."""
    for _ in range(2):
        told, _ = compile_and_check(twice(sorted_), *tensors())
    assert told == {"found": 1}


def test_lowering_replaced_by_hand(monkeypatch):
    """A body that was lowered by the old rule is not taken, and what the new one makes is not kept."""
    from torch._inductor.lowering import lowerings

    program = twice(lambda x, w: (x @ w).sin() + 1)
    assert compile_and_check(program, *tensors())[0] == {"lowered": 1}
    (entry,) = entries()
    sin, cos = torch.ops.aten.sin.default, torch.ops.aten.cos.default
    monkeypatch.setitem(lowerings, sin, lowerings[cos])
    shutil.rmtree(os.path.join(cache_dir(), "fxgraph"))
    torch._dynamo.reset()
    counters.clear()
    x, w = tensors()
    first = (x @ w).cos() + 1
    torch.testing.assert_close(torch.compile(program)(x, w), (first, ((x + 1) @ w).cos() + 1))
    assert dict(counters["region_bodies"]) == {"lowered": 1, "LOWERING": 1}
    assert entries() == [entry]


def test_refusal_is_told():
    error = BodyBypass(BypassReason.NODE, "a detail")
    assert str(error) == f"{BypassReason.NODE.value}: a detail"
    assert str(BodyBypass(BypassReason.OFF)) == BypassReason.OFF.value
