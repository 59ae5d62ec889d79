"""Kinds of values that a call may not read and be reused, where the call finds one without looking up its source."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.comptime import comptime


SEEN = []


def _forward():
    run = comptime

    def forward(self, x):
        y = self.b(self.a(x).tanh())
        run(lambda ctx: SEEN.append(ctx))
        return x + y

    return forward


@pytest.mark.parametrize("mark", [True, False], ids=["mark", "flag"])
def test_what_runs_while_dynamo_traces_is_found_in_a_cell(mark):
    """The first call read the cell. Later calls took its value as the frame had it, of whatever kind."""

    class Layer(nn.Module):
        forward = torch.compiler.nested_compile_region(_forward()) if mark else _forward()

        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    SEEN.clear()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=not mark):
        torch.compile(nn.Sequential(*(Layer() for _ in range(4))), backend="eager")(torch.ones(2, 4))
    assert len(SEEN) == 4
