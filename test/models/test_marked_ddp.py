"""DistributedDataParallel over gloo, two processes: gradients and parameters of marked blocks are those of eager and of unmarked ones."""

import os
import tempfile

import pytest
import torch.multiprocessing as mp
from ddp_worker import WORLD, work
from marked import some


CASES = [("aot_eager", False), ("aot_eager", True), ("inductor", False), ("inductor", True)]


@pytest.mark.parametrize("backend, split", some(CASES, [("aot_eager", True)]))
def test_gradients_as_in_eager(backend, split):
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(work, (directory, backend, split), nprocs=WORLD)
        assert len([n for n in os.listdir(directory) if n.startswith("done")]) == WORLD
