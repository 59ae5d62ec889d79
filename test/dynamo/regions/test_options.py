"""Options of Dynamo and AOTAutograd under which a body would be another program than its operators."""

import pytest
import torch
import torch._dynamo
import torch._functorch.config
from torch import nn
from torch._dynamo.regions.outcomes import RegionInlineReason, ReuseMissReason, forget_outcomes, outcomes


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = torch.fft.fft(self.up(x).tanh())
        return self.down((h * h.conj()).real).sin() + x


class Draws(nn.Module):
    """The drawing operator is in no body, and its operand is a weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter((torch.rand(4) > 0.5).float())

    def forward(self, x):
        return (x.sin() + torch.bernoulli(self.weight)).cos() * 2 + x


class Stack(nn.Module):
    def __init__(self, make=Layer):
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _step(mode, backend, make=Layer, around=None):
    """Result and gradients of a training step."""
    torch._dynamo.reset()
    forget_outcomes()
    torch.manual_seed(0)
    model, x = Stack(make), torch.randn(3, 4, requires_grad=True)
    if mode == "mark":
        for layer in model.layers:
            layer.forward = torch.compiler.nested_compile_region(layer.forward)
    with torch._dynamo.config.patch(use_graph_deduplication=mode == "flag"):
        y = torch.compile(model if around is None else around(model), backend=backend)(x)
        y.sin().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def _inlined():
    return {outcome.reason for outcome in outcomes()}


def _to_relu(graph_module, inputs):
    for node in graph_module.graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = torch.ops.aten.relu.default
    graph_module.recompile()
    return graph_module


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("mode", ["flag", "mark"])
@pytest.mark.parametrize(
    "options",
    [
        {"joint_custom_pass": _to_relu},
        {"selective_decompose": True},
        {"enable_complex_wrapper": True},
        {"fake_tensor_propagate_real_tensors": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_option_that_does_not_look_into_bodies(options, mode, backend):
    with torch._functorch.config.patch(options):
        flat = _step("flat", backend)
        torch.testing.assert_close(_step(mode, backend), flat)
    if mode == "mark":
        assert RegionInlineReason.AOTAUTOGRAD_OPTION in _inlined()


@pytest.mark.parametrize("backend", ["aot_eager_decomp_partition", "inductor"])
@pytest.mark.parametrize("mode", ["flag", "mark"])
def test_a_memory_budget_of_the_programs(mode, backend):
    def around(model):
        def within(x):
            with torch.autograd.graph.region_activation_memory_budget(0.5):
                return model(x)

        return within

    flat = _step("flat", backend, around=around)
    torch.testing.assert_close(_step(mode, backend, around=around), flat)
    assert RegionInlineReason.MEMORY_BUDGET in _inlined()


class Counts(nn.Module):
    """Draws numbers, and keeps running statistics."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return x + nn.functional.dropout(self.norm(self.linear(x).exp()).cos(), 0.5)


RUNS_AGAIN = [
    {"activation_memory_budget": 0.5},
    {"aggressive_recomputation": True},
    {"ban_recompute_not_in_allowlist": False},
]


@pytest.mark.parametrize("backend", ["aot_eager_decomp_partition", "inductor"])
@pytest.mark.parametrize("options", RUNS_AGAIN, ids=lambda options: next(iter(options)))
@pytest.mark.parametrize("mode", ["flag", "mark"])
def test_a_backward_that_may_run_any_operator_again(mode, options, backend):
    """It ran calls again, with other random numbers, and with buffers that the forward had written since."""
    with torch._functorch.config.patch(options):
        flat = _step("flat", backend, Counts)
        torch.testing.assert_close(_step(mode, backend, Counts), flat)
    if mode == "mark":
        assert RegionInlineReason.MEMORY_BUDGET in _inlined()


@pytest.mark.parametrize("make", [Layer, Draws])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("mode", ["flag", "mark"])
def test_each_call_has_its_own_weights_where_they_are_attributes_of_the_graph(mode, backend, make):
    with torch._dynamo.config.patch(prepare_freezing=True):
        flat = _step("flat", backend, make)
        torch.testing.assert_close(_step(mode, backend, make), flat)
    misses = {outcome.miss for outcome in outcomes()}
    assert mode == "flag" or misses == {ReuseMissReason.WEIGHTS_ARE_ATTRIBUTES}
