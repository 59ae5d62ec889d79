"""Which calls change the layout of a DTensor only, and when two meshes are the same to tracing."""

from types import SimpleNamespace

import pytest
import torch
from testing.sharded_programs import one_of_four_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.fx.dtensor_facts import Mesh, changes_layout, has_dtensor, is_dtensor, is_mesh, is_placement


@pytest.fixture(scope="module")
def mesh():
    with one_of_four_ranks() as mesh:
        yield mesh


@pytest.fixture
def graph(mesh):
    """A graph with a plain input, a DTensor and a mesh."""
    graph = torch.fx.Graph()
    values = {"x": torch.ones(4), "d": distribute_tensor(torch.ones(4), mesh, [Replicate()]), "mesh": mesh}
    nodes = {name: graph.placeholder(name) for name in values}
    for name, value in values.items():
        nodes[name].meta["example_value"] = value
    return SimpleNamespace(graph=graph, **nodes)


def test_making_of_a_dtensor(graph):
    def call(*args, **kwargs):
        return changes_layout(graph.graph.call_function(DTensor.from_local, args, kwargs))

    placements = (Replicate(),)
    assert call(graph.x, graph.mesh, placements) and call(graph.x, device_mesh=graph.mesh, run_check=False)
    assert not call(graph.x, graph.mesh, placements, run_check=True)  # it compares the ranks
    assert not call(graph.x)  # it asks for the present mesh


@pytest.mark.parametrize("name", ["redistribute", "to_local", "full_tensor"])
def test_methods(graph, name):
    assert changes_layout(graph.graph.call_method(name, (graph.d,)))
    assert not changes_layout(graph.graph.call_method(name, (graph.x,)))


def test_operators_change_no_layout(graph):
    node = graph.graph.call_function(torch.sin, (graph.d,))
    assert not changes_layout(node) and has_dtensor(node)
    assert not has_dtensor(graph.graph.call_function(torch.sin, (graph.x,)))


def test_classes(mesh, graph):
    class Own(DTensor):
        pass

    tensor = graph.d.meta["example_value"]
    assert is_dtensor(tensor) and not is_dtensor(torch.ones(1)) and not is_dtensor(None)
    assert not is_dtensor(Own(tensor._local_tensor, tensor._spec, requires_grad=False))
    assert is_mesh(mesh) and not is_mesh(tensor) and not is_mesh(None)


def test_no_code_of_an_object_runs():
    class Watched:
        def __getattribute__(self, name):
            raise AssertionError(name)

    assert not is_dtensor(Watched()) and not is_mesh(Watched()) and not is_placement(Watched())


def test_placements():
    from torch.distributed.tensor.placement_types import _MaskPartial

    assert all(map(is_placement, (Replicate(), Shard(1), Partial("sum"))))
    # It holds the mask of the last call, which a body would take for its own.
    assert not is_placement(_MaskPartial(offset_shape=torch.Size([4, 4]))) and not is_placement(0)


def test_meshes_of_the_same_groups_are_the_same(mesh):
    other = init_device_mesh("cpu", (4,))
    assert mesh == other and Mesh(mesh) != Mesh(other), "torch does not compare their groups"
    whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    assert whole["tensor"] is not whole["tensor"]
    assert Mesh(whole["tensor"]) == Mesh(whole["tensor"]) != Mesh(whole["data"])
    assert len({Mesh(whole["tensor"]), Mesh(whole["tensor"]), Mesh(mesh)}) == 2
