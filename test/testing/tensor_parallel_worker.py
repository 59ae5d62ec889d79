"""What each process of test_regions_tensor_parallel.py does. A spawned process can import it by its name."""

import os

import torch
import torch._dynamo
import torch.distributed as dist
from testing.models import compiled, same, start
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from benchmarks.zoo import build


WORLD, LAYERS, STEPS = 2, 4, 2


def _plan():
    inner = [*(f"self_attn.{name}_proj" for name in "qkv"), "mlp.gate_proj", "mlp.up_proj"]
    plan = {name: ColwiseParallel() for name in inner}
    return plan | {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}


def _steps(mesh, backend, flag):
    start()
    torch._dynamo.config.use_graph_deduplication = flag
    model = build("llama", LAYERS).model
    for layer in model.layers:
        parallelize_module(layer, mesh, _plan())
    called = compiled(model, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    ids = torch.randint(3, 125, (2, 8), generator=torch.Generator().manual_seed(0))  # the same on each rank
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        out = called(input_ids=ids).last_hidden_state
        out.pow(2).mean().backward()
        seen += [out.detach().clone(), [_local(p.grad) for p in model.parameters()]]
        optimizer.step()
    return seen, dict(counters["graph_deduplication"]), counters["stats"]["unique_graphs"]


def _local(value):
    return (value.to_local() if isinstance(value, DTensor) else value).detach().clone()


def work(rank, directory, backend):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=WORLD)
    try:
        mesh = init_device_mesh("cpu", (WORLD,))
        wanted, _, _ = _steps(mesh, None, False)
        flat, _, graphs = _steps(mesh, backend, False)
        got, counted, ours = _steps(mesh, backend, True)
        assert ours == graphs and counted["operators_outlined"] > counted["operators"] / 2, counted
        same(got, wanted)
        if backend == "aot_eager":
            torch.testing.assert_close(got, flat, rtol=0, atol=0)
        # A rank that found another structure would wait for the others forever.
        theirs = [None] * WORLD
        dist.all_gather_object(theirs, counted)
        assert theirs == [counted] * WORLD
        with open(os.path.join(directory, f"done{rank}"), "w"):
            pass
    finally:
        dist.destroy_process_group()
