"""Calls of regions that take and return DTensors: as in the flat program, to the bit, with its collectives."""

import pytest
import torch
from testing.cases import some
from testing.sharded_programs import PROGRAMS, collectives, one_of_four_ranks, run
from torch._dynamo.utils import counters


@pytest.fixture(scope="module")
def mesh():
    with one_of_four_ranks() as mesh:
        yield mesh


CASES = [(name, backend, train) for name in PROGRAMS for backend in ("eager", "aot_eager") for train in (True, False)]
NAMES = ("tensor parallel", "sequence parallel", "tied weights", "two meshes", "compositions", "between layers, split")
BY_DEFAULT = [(name, "aot_eager", True) for name in NAMES]


@pytest.mark.parametrize("name, backend, train", some(CASES, BY_DEFAULT))
def test_results_and_gradients_are_those_of_the_flat_program(mesh, name, backend, train):
    flat = run(name, mesh, False, backend, train)
    graphs = counters["stats"]["unique_graphs"]
    flag = run(name, mesh, True, backend, train)
    assert counters["stats"]["unique_graphs"] == graphs
    assert flag[0] == flat[0]
    torch.testing.assert_close(flag[1], flat[1], rtol=0, atol=0)
    counted = counters["graph_deduplication"]
    kept = counters["regions"]["traced"] if name == "marked" else counted["operators_outlined"] / counted["operators"]
    assert kept > 0.5, (counted, counters["regions"])


@pytest.mark.parametrize("name", some(list(PROGRAMS), ["sequence parallel", "between layers, split"]))
def test_collectives_keep_their_order_and_groups(mesh, name):
    flat = collectives(name, mesh, False)
    assert flat and collectives(name, mesh, True) == flat


def test_backward_is_traced_for_each_layout_of_the_gradients(mesh):
    """The last layer's gradient is of the loss's placement, the others' of what the layer behind passes on."""
    from torch._higher_order_ops import region_dtensors

    seen = []
    named = region_dtensors.name_for_gradients

    def name(gradients):
        seen.append(named(gradients))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch._higher_order_ops.missing_gradients.name_for_gradients", name)
        run("between layers, split", mesh, True, "aot_eager", True)
    assert len(seen) > len(set(seen)) and all(each.startswith("_for_layouts_") for each in seen), seen


def test_plain_operands_are_left_to_stock():
    from torch._higher_order_ops.region_dtensors import takes_dtensors

    body = torch.fx.symbolic_trace(torch.nn.ReLU())
    body.meta["region_outlined"] = ()
    assert not takes_dtensors(body, (torch.ones(2), 3, None))
