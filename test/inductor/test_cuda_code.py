"""Code for CUDA, which needs no GPU to be written: flat against regions, on a device that is not there.

Processes of their own believe in that device (test/testing/cuda_device.py). All ten models: `python -m benchmarks.cuda_code`.
"""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from testing import cuda_device
from testing.cases import EVERY

from benchmarks.cuda_code import measure


REASON = cuda_device.reason_against()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no code for CUDA: {REASON}")
PROGRAMS = Path(cuda_device.__file__).parent / "cuda_programs.py"
CASES = [("llama", "--dtype", "bfloat16"), ("bert", "--training")]
if EVERY:
    CASES += [("t5", "--training"), ("whisper",), ("convnext", "--training", "--dtype", "bfloat16")]
LAYERS = 3
model = pytest.mark.parametrize("case", CASES, ids=" ".join)


@functools.cache
def found(case, *options):
    """What the flat code and the flag's do in a step of a model."""
    both = measure(*case, *options)
    return both["overlay flat"], both["flag"]


@model
def test_kernels(case):
    """Each is defined once a wrapper, and launched as often as flat's but for values that go into a call or come out of it.

    And but for those that flat computes once for all layers, such as the bias that a mask is for attention.
    """
    flat, flag = found(case, "--ptx")
    assert flag["bodies"] >= 1
    assert flag["twice"] == 0
    assert flag["launches"] - flat["launches"] <= flag["crossings"] + LAYERS
    assert len(set(flag["kernels"]) - set(flat["kernels"])) <= len(flat["kernels"])


@model
def test_operators_of_torch_are_those_of_flat(case):
    """Products and attention; a product with its addition in one operator is one as without."""
    counts = []
    for record in found(case, "--ptx"):
        names = {name: n for name, n in record["operators"].items() if "mm" not in name}
        products = sum(n for name, n in record["operators"].items() if "mm" in name)
        counts.append((names, products))
    assert counts[0] == counts[1] and counts[0][1]


@model
def test_no_copy_at_a_boundary_that_flat_has_not(case):
    flat, flag = found(case, "--ptx")
    assert flag["copies"] <= flat["copies"]


@model
def test_memory_is_reused_across_calls(case):
    flat, flag = found(case, "--ptx")
    assert flag["peak"] <= 1.02 * flat["peak"]


@model
def test_guards_streams_and_alignment(case):
    for record in found(case, "--ptx"):
        assert record["launches"] and not record["wrong"]


@model
def test_all_kernels_are_compiled_by_triton_and_ptxas(case):
    """The worker ends with an error where one is not."""
    for record in found(case, "--ptx"):
        assert record["compiled"] >= len(record["kernels"]) > 0


@functools.cache
def programs():
    done = subprocess.run([sys.executable, str(PROGRAMS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["copied rows", "copied rows in bfloat16", "written rows"])
def test_an_operand_begins_where_the_kernels_of_the_body_may_read_it(name):
    """Inductor drops a copy, so that an operand is in the middle of a buffer: kernels took it for an aligned one."""
    flat, marked = programs()[name]["flat"], programs()[name]["marked"]
    assert marked["bodies"] == 1 and not flat["wrong"] and not marked["wrong"]


def test_attention_is_found_in_bodies_as_in_flat_code():
    flat, marked = programs()["attention pattern"]["flat"], programs()["attention pattern"]["marked"]
    assert marked["bodies"] == 1 and marked["operators"] == flat["operators"]


def test_an_operator_that_may_draw_random_numbers_stays_outside_of_bodies():
    flat, marked = programs()["flash attention"]["flat"], programs()["flash attention"]["marked"]
    assert marked == flat


def test_the_seeds_of_bodies_are_taken_at_once():
    """A call is given a slice of the graph's seeds, which may begin in the middle of the buffer."""
    flat, marked = programs()["dropout"]["flat"], programs()["dropout"]["marked"]
    assert marked["bodies"] == 1 and not marked["wrong"]
    for what in ("operators", "launches", "copies"):
        assert marked[what] == flat[what]


def test_each_cuda_graph_is_made_of_the_same():
    """mode="reduce-overhead": no further partition, constant, input that is copied in or written to, and none is skipped.

    What is saved for the backward is a static input, and the partitioner decides about it in each body by itself.
    """
    flat, flag = found(("bert", "--training", "--set", "triton.cudagraphs=True"))
    assert flag["bodies"] and flat["graphs"]
    for record in (flat, flag):
        for graph in record["graphs"]:
            graph["copied in"] = graph.pop("inputs") - graph.pop("static")
        assert [graph["is_backward"] for graph in record["graphs"]] == [False, True] and not record["skips"]
    assert flag["graphs"] == flat["graphs"]


def test_max_autotune_has_the_same_choices():
    """And the kernels of a template that is chosen are those of flat."""
    flat, flag = found(("bert", "--ptx", "--set", "max_autotune_gemm=True"))
    assert flag["bodies"] and flag["tuned"] == flat["tuned"]
    assert any(len(choices) > 4 for choices in flat["tuned"])
    assert flag["kernels"] == flat["kernels"] and not any("mm" in name for name in flag["operators"])


def test_combo_kernels_are_made_in_bodies_too():
    """Kernels that do not depend on each other become one; fewer are left, with the flag as flat."""
    flat, flag = found(("bert", "--training", "--ptx", "--set", "combo_kernels=True"))
    alone_flat, alone_flag = found(("bert", "--training"), "--ptx")
    assert flag["bodies"] == alone_flag["bodies"] and not flag["wrong"]
    assert len(flat["kernels"]) < len(alone_flat["kernels"])
    assert len(flag["kernels"]) < len(alone_flag["kernels"]) and flag["twice"] == 0
    assert flag["copies"] <= flat["copies"]


def test_a_process_finds_all_kernels_of_one_that_compiled_fewer_layers():
    """Triton keeps a compiled kernel under its source, in which its name is."""
    _, three = found(("bert", "--training"))
    _, six = found(("bert", "--training", "--layers", "6"))
    assert six["named"] == three["named"] and six["bodies"] == three["bodies"] >= 1


@pytest.mark.parametrize("case", [*CASES, ("bert", "--training", "--dynamic")], ids=" ".join)
def test_bodies_of_a_process_that_compiled_fewer_layers_are_found(case, tmp_path, monkeypatch):
    """And the program is what lowering them would have made, to the letter."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    texts, told = [], []
    for layers, cached, folder in (("3", True, None), ("4", True, "found"), ("4", False, "lowered")):
        options = ["--layers", layers, "--set", "force_disable_caches=False", "--set", f"fx_graph_cache={cached}"]
        if folder is not None:
            (tmp_path / folder).mkdir()
            options += ["--keep", str(tmp_path / folder)]
        record = measure(*case, *options)["flag"]
        told.append(record["kept"])
        assert record["bodies"] and not record["wrong"]
        if folder is not None:
            files = sorted((tmp_path / folder).glob("*_flag_*"))
            texts.append([_without_origins(file.read_text()) for file in files])
    bodies = told[0].pop("lowered")
    assert told == [{}, {"found": bodies}, {"lowered": bodies, "OFF": bodies}]
    assert texts[0] == texts[1] and texts[0]


def _without_origins(text):
    """Comments name the nodes of the program that a body was first seen in; the first line numbers the graphs."""
    return re.sub(r"(?m)^ *# (?!kernel path).*\n", "", text)
