"""Tensor parallelism over gloo, two processes: with regions, results and gradients are those of eager and of flat."""

import os
import tempfile

import pytest
import torch.multiprocessing as mp
from testing.cases import some
from testing.tensor_parallel_worker import WORLD, work


@pytest.mark.parametrize("backend", some(["aot_eager", "inductor"], ["aot_eager"]))
def test_results_and_gradients_as_in_eager(backend):
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(work, (directory, backend), nprocs=WORLD)
        assert len([n for n in os.listdir(directory) if n.startswith("done")]) == WORLD
