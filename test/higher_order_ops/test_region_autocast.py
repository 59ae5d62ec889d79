"""Bodies under autocast: results and gradients are those of the flat graph; Inductor's, up to rounding."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from testing.cases import some
from torch import nn
from torch._dynamo.utils import counters


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            scale = 1 + (x.float() @ x.float().t()).softmax(-1).mean(-1, keepdim=True)
        return x + self.down(F.gelu(self.up(self.norm(x)))) * scale


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for block in self.blocks:
                x = block(x)
        return x


def _step(flag):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model, x = Stack(), torch.randn(4, 8, requires_grad=True)
    with torch._dynamo.config.patch(use_graph_deduplication=flag, graph_deduplication_lint=True):
        y = torch.compile(model, fullgraph=True)(x)
    y.pow(2).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("decompose", [False, True], ids=["casts_as_eager", "casts_fused"])
def test_gradients_are_those_of_the_flat_graph(decompose):
    with torch._inductor.config.patch(emulate_precision_casts=not decompose):
        wanted, found = _step(False), _step(True)
    assert counters["graph_deduplication"]["bodies"] == 1
    assert [g.dtype for g in found] == [g.dtype for g in wanted]
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


# Autocast leaves each of these alone, and casts the operands of products in it.
COMPOSITIONS = {
    "einsum": lambda s, x: torch.einsum("be,ef->bf", x, s.a),
    "einsum of three": lambda s, x: torch.einsum("be,ef,bf->bf", x @ s.a, s.b, x),
    "chain_matmul": lambda s, x: torch.chain_matmul(x, s.a, s.b),
    "multi_dot": lambda s, x: torch.linalg.multi_dot([x, s.a, s.b]),
    "matrix_power": lambda s, x: x @ torch.linalg.matrix_power(s.a, 3),
    "tensordot": lambda s, x: torch.tensordot(x, s.a, 1),
    "inner": lambda s, x: torch.inner(x, s.a),
    "lstm_cell": lambda s, x: torch.lstm_cell(x, (x, x), s.gates, s.gates)[0],
    "gru_cell": lambda s, x: torch.gru_cell(x, x, s.gates[:12], s.gates[:12]),
    "nll_loss": lambda s, x: x + F.nll_loss(x @ s.a, torch.tensor([0, 1, 2, 3, 0, 1])),
}
# What shows that a way of running the layers shares them.
COUNTED = {"flag": ("graph_deduplication", "calls"), "mark": ("regions", "reused"), "verify": ("regions", "verified")}
WAYS = [(kind, entered, grad) for kind in COMPOSITIONS for entered in ("around", "inside") for grad in (False, True)]


class Composed(nn.Module):
    def __init__(self, compose, entered):
        super().__init__()
        self.a, self.b, self.gates = (nn.Parameter(torch.randn(n, 4) * 0.5) for n in (4, 4, 16))
        self.compose, self.entered = compose, entered

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False) if self.entered else contextlib.nullcontext():
            y = self.compose(self, x).tanh()
        return x + y.float() * 0.5 + self.compose(self, x.sin()).float().cos()


def _observed(kind, entered, grad, way):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    layers = nn.Sequential(*(Composed(COMPOSITIONS[kind], entered == "inside") for _ in range(4)))
    if way in ("mark", "verify"):
        for layer in layers:
            layer.forward = torch.compiler.nested_compile_region(layer.forward)
    x = torch.randn(6, 4, requires_grad=grad)

    def run(x):
        around = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
        with around if entered == "around" else contextlib.nullcontext():
            return layers(x)

    options = {"use_graph_deduplication": way == "flag", "verify_region_reuse": way == "verify"}
    by_caller = torch.autocast("cpu", torch.bfloat16, enabled=entered == "by the caller")
    with torch._dynamo.config.patch(**options), torch.set_grad_enabled(grad), by_caller:
        y = torch.compile(run, backend="aot_eager", fullgraph=True)(x)
    if grad:
        y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in layers.parameters())]


@pytest.mark.parametrize("kind, entered, grad", some(WAYS, [*WAYS[::4], *WAYS[5::8], *WAYS[3::16]]))
def test_autocast_casts_the_parts_of_a_composition(kind, entered, grad):
    """Where no gradient was needed, the parts ran without autocast: in another precision, or of two dtypes, an error."""
    wanted = _observed(kind, entered, grad, "flat")
    for way in ("flag", "mark", "verify"):
        torch.testing.assert_close(_observed(kind, entered, grad, way), wanted, rtol=0, atol=0)
        group, name = COUNTED[way]
        assert counters[group][name] >= 2


def test_a_frame_that_is_called_under_autocast():
    """The parts had two dtypes, which no product takes."""
    flat, flag = (_observed("einsum of three", "by the caller", True, way) for way in ("flat", "flag"))
    torch.testing.assert_close(flag, flat, rtol=0, atol=0)
