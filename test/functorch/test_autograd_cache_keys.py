"""A model has one key however its regions were found, in whatever order its modules stand, in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from testing.cache_keys import keys_of
from testing.keyed_model import Model, Reordered, key
from torch.utils._release import RELEASE


def test_flag_and_mark_have_one_key():
    found = key(flag=True)
    assert " " not in found[0]
    assert key(marked=True) == found
    assert key(flag=True, marked=True) == found
    # Without regions it is another graph.
    assert key() != found


@pytest.mark.parametrize("flag", [True, False])
def test_order_of_submodules(flag):
    assert key(flag, marked=not flag, block=Reordered) == key(flag, marked=not flag)


@pytest.mark.parametrize("flag", [True, False])
def test_depth_counts(flag):
    assert key(flag, marked=not flag, depth=5) != key(flag, marked=not flag)


def test_other_processes_have_the_same_keys():
    """Sets of sources have another order in each process. The order of a stamped call's inputs came from one."""
    keys = set()
    for seed in ("0", "1", "2"):
        code = "from testing import keyed_model as t; print(t.key(marked=True), t.key(flag=True))"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TORCH_REGIONS": "strict"}
        here = os.path.dirname(os.path.dirname(__file__))
        environment["PYTHONPATH"] = os.pathsep.join((here, environment.get("PYTHONPATH", "")))
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        keys.add(done.stdout)
    assert len(keys) == 1, keys


def _keys_under_autocast(dtype, flag):
    model = Model()

    def forward(x):
        with torch.autocast("cpu", dtype=dtype):
            return model(x)

    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        (found,) = keys_of(forward, torch.ones(2, 5, 16))
    return found


@pytest.mark.parametrize("flag", [True, False])
def test_a_graph_that_enters_autocast_has_a_key_where_it_has_one_in_stock(flag):
    found = _keys_under_autocast(torch.bfloat16, flag)
    if RELEASE >= (2, 15):
        assert " " not in found
        assert _keys_under_autocast(torch.bfloat16, flag) == found
        assert _keys_under_autocast(torch.float16, flag) != found
    else:
        assert found.startswith("BypassAOTAutogradCache") and "_enter_autocast" in found
