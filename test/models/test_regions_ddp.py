"""DistributedDataParallel over gloo, two processes: with regions, gradients and parameters are those of eager and of flat."""

import os
import tempfile

import pytest
import torch.multiprocessing as mp
from testing.cases import some
from testing.ddp_worker import WORLD, work


CASES = [
    (b, split, automatic) for b in ("aot_eager", "inductor") for split in (False, True) for automatic in (False, True)
]


@pytest.mark.parametrize(
    "backend, split, automatic", some(CASES, [("aot_eager", True, False), ("aot_eager", True, True)])
)
def test_gradients_as_in_eager(backend, split, automatic):
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(work, (directory, backend, split, automatic), nprocs=WORLD)
        assert len([n for n in os.listdir(directory) if n.startswith("done")]) == WORLD
