"""What each process of test_regions_ddp.py does. A spawned process can import it by its name."""

import os

import torch
import torch._dynamo
import torch.distributed as dist
from testing.models import compiled, same, start
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from benchmarks.zoo import build, mark_blocks


WORLD, LAYERS, STEPS = 2, 3, 2
# Buckets smaller than the model: the compiled graph is split between them.
BUCKET_MB = 0.02


def _gradients(rank, backend, marked, split, automatic=False):
    start()
    torch._dynamo.config.use_graph_deduplication = automatic
    model = build("llama", LAYERS).model
    if marked:
        assert mark_blocks("llama", model) == LAYERS
    parallel = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB if split else 25)
    called = compiled(parallel, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ids = torch.randint(3, 125, (2, 8), generator=torch.Generator().manual_seed(rank))
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        out = called(input_ids=ids).last_hidden_state
        out.pow(2).mean().backward()
        seen += [out.detach().clone(), [p.grad.clone() for p in model.parameters()]]
        optimizer.step()
        seen.append([p.detach().clone() for p in model.parameters()])
    partitions = counters["aot_autograd"]["total"]
    assert backend is None or (partitions > 1) == split
    return seen, dict(counters["regions"]), counters["stats"]["unique_graphs"]


def work(rank, directory, backend, split, automatic):
    torch.set_num_threads(1)
    if split:  # no bucket is larger than the first may be
        dist._DEFAULT_FIRST_BUCKET_BYTES = int(BUCKET_MB * 2**20)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=WORLD)
    try:
        wanted, none, _ = _gradients(rank, None, False, split)
        assert not none
        unmarked, none, graphs = _gradients(rank, backend, False, split)
        assert not none
        got, outcomes, ours = _gradients(rank, backend, not automatic, split, automatic)
        # The regions act in the workers.
        kept = outcomes.get("traced", 0) + outcomes.get("reused", 0)
        assert kept >= LAYERS and not outcomes.get("inlined"), outcomes
        assert ours <= graphs
        same(got, wanted)
        if backend == "aot_eager":
            torch.testing.assert_close(got, unmarked, rtol=0, atol=0)
        else:  # Inductor rounds in other places
            same(got, unmarked)
        # Outputs differ between the processes; gradients and parameters do not.
        for tensor in [t for k in (1, 2) for step in got[k::3] for t in step]:
            theirs = [torch.empty_like(tensor) for _ in range(WORLD)]
            dist.all_gather(theirs, tensor.contiguous())
            assert all(torch.equal(theirs[0], t) for t in theirs)
        with open(os.path.join(directory, f"done{rank}"), "w") as f:
            f.write(str(outcomes))
    finally:
        dist.destroy_process_group()
