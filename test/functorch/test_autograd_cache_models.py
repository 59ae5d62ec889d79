"""A model with regions that one process has compiled is found by another, however its regions are made known there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from testing import processes
from testing.cases import ALL


LAYERS = 4
FOUND = {"hit": 1, "miss": 0, "bypass": 0}
NOT_FOUND = {"hit": 0, "miss": 1, "bypass": 0}
BODIES = {"infer": 1, "train": 2}  # a backward has one of its own


def run(folder: Path, way: str, mode: str, layers: int = LAYERS) -> dict[str, Any]:
    """What the program told; it has compared its results and gradients with eager."""
    told, warnings = processes.finish(processes.fork("cached_model", folder, layers, way, mode))
    assert not warnings
    return told


@pytest.fixture(scope="module", params=[pytest.param("infer", marks=ALL), "train"])
def filled(request, tmp_path_factory) -> tuple[Path, str]:
    """A folder in which a process has left the model that it compiled through the flag."""
    folder = tmp_path_factory.mktemp(request.param)
    told = run(folder, "flag", request.param)
    assert (told["cache"], told["bodies"]) == (NOT_FOUND, {"lowered": BODIES[request.param]})
    assert told["calls"]["REUSED"] >= LAYERS - 2
    return folder, request.param


@pytest.mark.parametrize("way", ["flag", "mark", "reordered"])
def test_other_process_finds_it(filled, way):
    folder, mode = filled
    told = run(folder, way, mode)
    assert told["cache"] == FOUND
    assert told["calls"]["REUSED"] >= LAYERS - 2


def test_another_program_does_not(filled):
    folder, mode = filled
    told = run(folder, "flat", mode)
    assert (told["cache"], told["bodies"]) == (NOT_FOUND, {})


@pytest.mark.parametrize("way", ["flag", "mark"])
def test_deeper_model_finds_the_bodies(filled, way, tmp_path):
    """It pays for what is new. Bodies, and their kernels, are those of the other process."""
    folder, mode = filled
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    told = run(tmp_path, way, mode, LAYERS + 2)
    assert (told["cache"], told["bodies"]) == (NOT_FOUND, {"found": BODIES[mode]})
