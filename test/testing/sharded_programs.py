"""Models of DTensors, on a process group of four ranks of which this process is the only one there.

Its collectives send nothing, so what a rank computes is the same each time, but not what four ranks would.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore


LAYERS, WIDTH, RANKS = 4, 8, 4


@contextlib.contextmanager
def one_of_four_ranks() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (RANKS,))
    finally:
        torch._dynamo.reset()
        dist.destroy_process_group()


class Block(nn.Module):
    """A block of a transformer, but for its attention."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x):
        h = F.gelu(self.up(self.norm(x))).sin()
        return x + self.down(F.dropout(h, self.dropout, self.training) if self.dropout else h)


class Loop(nn.Module):
    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Part(nn.Module):
    """A linear map whose weight is a DTensor."""

    def __init__(self, mesh: DeviceMesh, placement: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(torch.randn(WIDTH, WIDTH), mesh, [placement]))

    def forward(self, x):
        return x @ self.weight.t()


class Pair(nn.Module):
    """Two maps: takes and returns plain tensors, and reads the mesh of a weight."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.first, self.second = Part(mesh, Shard(0)), Part(mesh, Shard(1))

    def forward(self, x):
        h = DTensor.from_local(x, self.first.weight.device_mesh, [Replicate()], run_check=False)
        h = self.second(self.first(h).tanh().sin()).redistribute(placements=[Replicate()])
        return h.to_local().cos() + x


class Between(Pair):
    """The same on DTensors. What it returns is the sum of a sum over ranks that is not done yet, and its argument."""

    def forward(self, x):
        return (self.second(self.first(x).tanh().sin()) + x).redistribute(placements=[Replicate()]).cos()


class Composed(nn.Module):
    """Operators that are compositions (``linear``, ``layer_norm``) of DTensors that are split over ranks or sums."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(torch.randn(WIDTH, WIDTH), mesh, [Shard(0)]))
        self.scale = nn.Parameter(distribute_tensor(torch.randn(WIDTH), mesh, [Shard(0)]))
        self.shift = nn.Parameter(distribute_tensor(torch.randn(WIDTH), mesh, [Replicate()]))

    def forward(self, x):
        h = (x @ self.weight).tanh().sin()
        h = F.layer_norm((h - h.mean()).view(WIDTH, WIDTH), (WIDTH,), self.scale) + self.shift
        h = DTensor.from_local(h.to_local().cos(), self.weight.device_mesh, h.placements, run_check=False)
        return (h.sin() @ self.weight).redistribute(placements=[Replicate()])


def _tensor_parallel(mesh: Any, layers: Sequence[nn.Module], plan: Callable[[], Any] | None = None) -> Loop:
    plan = plan or (lambda: {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for layer in layers:
        parallelize_module(layer, mesh() if callable(mesh) else mesh, plan())
    return Loop(layers)


def _blocks(count: int = LAYERS, **options: Any) -> list[nn.Module]:
    return [Block(**options) for _ in range(count)]


def _sequence_parallel() -> Any:
    split = Shard(1)
    return {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=split),
        "down": RowwiseParallel(output_layouts=split),
    }


def _plain() -> torch.Tensor:
    return torch.randn(2, 4, WIDTH)


def _frozen(mesh: DeviceMesh) -> Loop:
    model = _tensor_parallel(mesh, _blocks())
    for layer in model.layers:
        layer.up.weight.requires_grad_(False)
    return model


def _of_two_meshes(mesh: DeviceMesh) -> Loop:
    """Equal meshes with other groups, in turn."""
    meshes = [mesh, init_device_mesh("cpu", (RANKS,))]
    blocks = _blocks(6)
    for k, layer in enumerate(blocks):
        parallelize_module(layer, meshes[k % 2], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return Loop(blocks)


def _tied(mesh: DeviceMesh) -> Loop:
    blocks = _blocks()
    for layer in blocks[1:]:
        layer.up = blocks[0].up
    parallelize_module(blocks[0], mesh, {"up": ColwiseParallel()})
    for layer in blocks:
        parallelize_module(layer, mesh, {"down": RowwiseParallel()})
    return Loop(blocks)


def _marked(mesh: DeviceMesh) -> Loop:
    model = _tensor_parallel(mesh, _blocks())
    region = torch.compiler.nested_compile_region(lambda layer, x: layer(x))
    model.forward = lambda x, layers=tuple(model.layers): _in_turn(region, layers, x)  # type: ignore[method-assign]
    return model


def _in_turn(region: Callable[..., Any], layers: Sequence[nn.Module], x: Any) -> Any:
    for layer in layers:
        x = region(layer, x)
    return x


def _slices(mesh: DeviceMesh) -> Loop:
    """Each layer asks for its part of a mesh of two dimensions."""
    whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    return _tensor_parallel(lambda: whole["tensor"], _blocks())


# name -> (what makes the model of a mesh, what makes the argument of a mesh)
PROGRAMS: dict[str, tuple[Callable[[DeviceMesh], nn.Module], Callable[[DeviceMesh], torch.Tensor]]] = {
    "tensor parallel": (lambda mesh: _tensor_parallel(mesh, _blocks()), lambda mesh: _plain()),
    "input requires grad": (lambda mesh: _tensor_parallel(mesh, _blocks()), lambda mesh: _plain().requires_grad_()),
    "sequence parallel": (lambda mesh: _tensor_parallel(mesh, _blocks(), _sequence_parallel), lambda mesh: _plain()),
    "dropout": (lambda mesh: _tensor_parallel(mesh, _blocks(dropout=0.3)), lambda mesh: _plain()),
    "frozen weights": (_frozen, lambda mesh: _plain()),
    "tied weights": (_tied, lambda mesh: _plain()),
    "two meshes": (_of_two_meshes, lambda mesh: _plain()),
    "slices of a mesh": (_slices, lambda mesh: _plain()),
    "marked": (_marked, lambda mesh: _plain()),
    "weights only": (lambda mesh: Loop([Pair(mesh) for _ in range(LAYERS)]), lambda mesh: _plain()),
    "compositions": (
        lambda mesh: Loop([Composed(mesh) for _ in range(LAYERS)]),
        lambda mesh: distribute_tensor(torch.randn(WIDTH, WIDTH), mesh, [Replicate()]).requires_grad_(),
    ),
    "between layers": (
        lambda mesh: Loop([Between(mesh) for _ in range(LAYERS)]),
        lambda mesh: distribute_tensor(_plain(), mesh, [Replicate()]),
    ),
    "between layers, split": (
        lambda mesh: Loop([Between(mesh) for _ in range(LAYERS)]),
        lambda mesh: distribute_tensor(torch.randn(RANKS, 4, WIDTH), mesh, [Shard(0)]),
    ),
}


def _layout(value: Any) -> Any:
    return (value.placements, value.shape, value.stride()) if isinstance(value, DTensor) else type(value)


def _local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def run(
    name: str, mesh: DeviceMesh, flag: bool, backend: Any, train: bool, **config: Any
) -> tuple[list[Any], list[torch.Tensor]]:
    """What two calls of a program return, then gradients, and the next random number: layouts, and local tensors."""
    make, argument = PROGRAMS[name]
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model, x = make(mesh).train(train), argument(mesh)
    seen = []
    with torch._dynamo.config.patch(use_graph_deduplication=flag, graph_deduplication_lint=flag, **config):
        compiled = torch.compile(model, backend=backend) if backend is not None else model
        for _ in range(2):
            with torch.set_grad_enabled(train):
                result = compiled(x)
                seen.append(result.detach().clone())
                if train:
                    _local(result).square().mean().backward()
    seen += [each.grad for each in (*model.parameters(), x)]
    return list(map(_layout, seen)), [*(_local(each) for each in seen if each is not None), torch.rand(2)]


def collectives(name: str, mesh: DeviceMesh, flag: bool) -> list[str]:
    """The collectives of a training step, in order, with their groups: bodies are read where they are called."""
    found: list[str] = []

    def read(gm: torch.fx.GraphModule) -> None:
        for node in gm.graph.nodes:
            if node.target is torch.ops.higher_order.invoke_subgraph:
                read(getattr(gm, node.args[0].target))
            elif "c10d" in str(node.target):
                others = [a for a in node.args if not isinstance(a, torch.fx.Node)]
                found.append(f"{node.target} {others}")

    def compiler(gm: torch.fx.GraphModule, _: Any) -> Any:
        read(gm)
        return gm.forward

    run(name, mesh, flag, aot_autograd(fw_compiler=compiler, bw_compiler=compiler), True)
    return found
