"""Calls of a body that takes sizes and no tensor: it makes all of its tensors itself."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters


def positions(x):
    """The sum of encodings that are made anew from one size."""
    found = []
    for _ in range(4):
        found.append((torch.arange(x.size(0)) * 0.5 + 1).sin().cos() * 2)
    return x + sum(found).unsqueeze(1)


def halves(x):
    n, found = x.size(0) // 2, []
    for _ in range(4):
        found.append((torch.ones(n, 4) * 2 - 3).cumsum(0).tanh())
    return x[:n] + sum(found), found[0]


@pytest.mark.parametrize("program", [positions, halves])
@pytest.mark.parametrize("grad", [True, False])
def test_a_body_of_sizes_is_compiled(program, grad):
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(use_graph_deduplication=True), torch.set_grad_enabled(grad):
        compiled = torch.compile(program, dynamic=True)
        for n in (6, 10):
            x = torch.linspace(-1, 1, 4 * n).view(n, 4).requires_grad_(grad)
            torch.testing.assert_close(compiled(x), program(x))
    assert counters["graph_deduplication"]["calls"] == 4
    torch._dynamo.reset()
