"""A model has one key however its regions were found, in whatever order its modules stand, in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from cache_keys import keys_of


class Block(torch.nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.query = torch.nn.Linear(width, width)
        self.key = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.norm(x)
        x = x + torch.softmax(self.query(h) @ self.key(h).transpose(-1, -2), -1) @ h
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Reordered(Block):
    def __init__(self) -> None:
        super().__init__()
        self._modules = dict(reversed(self._modules.items()))  # type: ignore[assignment]


class Model(torch.nn.Module):
    def __init__(self, block: type[Block] = Block, marked: bool = False, depth: int = 4) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(block() for _ in range(depth))
        if marked:
            for layer in self.layers:
                layer.forward = torch.compiler.nested_compile_region(layer.forward)  # type: ignore[method-assign]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def key(flag: bool = False, **options) -> list[str]:
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        return keys_of(Model(**options), torch.ones(2, 5, 16))


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
        code = "import test_region_cache_keys as t; print(t.key(marked=True), t.key(flag=True))"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TORCH_REGIONS": "strict"}
        here = os.path.dirname(__file__)
        environment["PYTHONPATH"] = os.pathsep.join((here, environment.get("PYTHONPATH", "")))
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        keys.add(done.stdout)
    assert len(keys) == 1, keys
