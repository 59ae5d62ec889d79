"""Programs with regions are exported as they are without the overlay, and compute the same."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.regions.outcomes import ReuseMissReason, outcomes


pytestmark = pytest.mark.usefixtures("bodies")
X = torch.randn(2, 4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        return (self.linear(x) + self.shift).sin()


class Model(nn.Module):
    def __init__(self, mark, tied=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        if tied:
            self.blocks[3].linear = self.blocks[1].linear
        self.run = mark(lambda block, x: block(x))

    def forward(self, x):
        for block in self.blocks:
            x = self.run(block, x)
        return x


def calls_of(program):
    return sum(n.target is torch.ops.higher_order.invoke_subgraph for n in program.graph.nodes)


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("strict", [True, False])
def test_marked(strict, tied):
    model = Model(torch.compiler.nested_compile_region, tied)
    program = torch.export.export(model, (X,), strict=strict)
    torch.testing.assert_close(program.module()(X), model(X))
    assert set(program.state_dict) == set(model.state_dict())
    if strict:
        assert calls_of(program) == 4
        assert {o.miss for o in outcomes()} == {ReuseMissReason.WEIGHTS_ARE_ATTRIBUTES}
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(program.module(), backend="aot_eager")(X), model(X))


@pytest.mark.parametrize("strict", [True, False])
def test_sizes_that_are_dynamic(strict):
    model = Model(torch.compiler.nested_compile_region)
    program = torch.export.export(model, (X,), strict=strict, dynamic_shapes=({0: torch.export.Dim("batch")},))
    for size in (2, 5):
        x = torch.randn(size, 4)
        torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("strict", [True, False])
def test_under_the_flag(strict):
    model = Model(lambda fn: fn)
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        program = torch.export.export(model, (X,), strict=strict)
    torch.testing.assert_close(program.module()(X), model(X))
    assert set(program.state_dict) == set(model.state_dict())
