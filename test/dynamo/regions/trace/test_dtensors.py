"""A traced call is reused for a layer with DTensors of its own, with the guards that tracing makes."""

import copy

import pytest
import torch
import torch._dynamo
from testing.sharded_programs import LAYERS, PROGRAMS, WIDTH, Loop, one_of_four_ranks, run
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


@pytest.fixture(scope="module")
def mesh():
    with one_of_four_ranks() as mesh:
        yield mesh


# With hooks, with weights only, with arguments and results.
@pytest.mark.parametrize("name", ["sequence parallel", "weights only", "slices of a mesh", "between layers, split"])
def test_reuse_leaves_what_tracing_leaves(mesh, name):
    run(name, mesh, True, "eager", True, verify_region_reuse=True)
    assert not counters["regions"].get("reused")  # each was traced, and compared
    run(name, mesh, True, "eager", True)
    assert counters["regions"]["reused"] == LAYERS - 2


def _weight(mesh, placement, dtype=torch.float32):
    return nn.Parameter(distribute_tensor(torch.ones(WIDTH, WIDTH, dtype=dtype), mesh, [placement]))


def _placement(model, mesh):
    model.layers[3].first.weight = _weight(mesh, Replicate())


def _group(model, mesh):
    model.layers[2].first.weight = _weight(init_device_mesh("cpu", (4,)), Shard(0))


def _plain(model, mesh):
    model.layers[3].second.weight = nn.Parameter(torch.ones(WIDTH, WIDTH))


def _frozen(model, mesh):
    model.layers[2].second.weight.requires_grad_(False)


def _tied(model, mesh):
    model.layers[3].first.weight = model.layers[2].first.weight


def _dtype(model, mesh):
    model.layers[3].first.weight = _weight(mesh, Shard(0), torch.float64)


def _values(model, mesh):
    with torch.no_grad():
        model.layers[3].first.weight.mul_(2)


@pytest.mark.parametrize("change", [_placement, _group, _plain, _frozen, _tied, _dtype, _values])
def test_change_after_the_compile_is_seen(mesh, change):
    """Results are eager's, or the error is; recompiles are those of the flat program."""
    make, argument = PROGRAMS["weights only"]
    torch.manual_seed(0)
    original, x = make(mesh), argument(mesh)
    seen = {}
    for way in ("eager", "flat", "flag"):
        torch._dynamo.reset()
        counters.clear()
        model = copy.deepcopy(original)
        with torch._dynamo.config.patch(use_graph_deduplication=way == "flag"):
            compiled = model if way == "eager" else torch.compile(model, backend="eager")
            compiled(x)
            assert way != "flag" or counters["regions"]["reused"] == LAYERS - 2
            change(model, mesh)
            try:
                seen[way] = compiled(x), counters["stats"]["unique_graphs"]
            except Exception:
                seen[way] = None, None
    assert seen["flag"][1] == seen["flat"][1]
    torch.testing.assert_close(seen["flag"][0], seen["eager"][0], rtol=0, atol=0)


class Asks(nn.Module):
    """Asks a weight how it is laid out, and computes with another one."""

    def __init__(self, mesh):
        super().__init__()
        self.asked, self.linear = _weight(mesh, Shard(0)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.linear(x).sin()
        if self.asked.placements[0].is_replicate():
            y = y * 2
        if self.asked.device_mesh.size() > 2:
            y = y + 1
        return y.cos() + x


@pytest.mark.parametrize("verify", [False, True])
def test_layout_that_is_only_asked_for_is_guarded(mesh, verify):
    model, x = Loop([Asks(mesh) for _ in range(LAYERS)]), torch.randn(2, WIDTH)
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(use_graph_deduplication=True, verify_region_reuse=verify):
        compiled = torch.compile(model, backend="eager")
        compiled(x)
        assert counters["regions"].get("reused", 0) == (0 if verify else LAYERS - 2)
        for weight in (
            _weight(mesh, Replicate()),
            _weight(init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))["a"], Shard(0)),
        ):
            model.layers[3].asked = weight
            torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=0)
    assert counters["stats"]["unique_graphs"] == 3
