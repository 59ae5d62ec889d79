"""Keys of metadata: the backward that calls share whose gradients are parts of one tensor."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch._higher_order_ops.metadata_keys import key_of_tangents
from torch._higher_order_ops.region_dtensors import trace_joint
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext


CALLS = 6


@torch.library.custom_op("metadata_keys::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(lambda x: torch.empty_like(x))
twice.register_autograd(lambda ctx, gradient: gradient * (2 + gradient.storage_offset()))


@torch.library.custom_op("metadata_keys::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def same_elements(ctx, gradient):
    return gradient.as_strided(gradient.shape, gradient.stride(), gradient.storage_offset()) * 3


thrice.register_fake(lambda x: torch.empty_like(x))
thrice.register_autograd(same_elements)

# How a program puts results together.
JOINS = {
    "stack": lambda results: torch.stack(results, 1),
    "cat": lambda results: torch.cat(results, 1),
    "cat of rows": lambda results: torch.cat(results),
    "stack of parts": lambda results: torch.stack([part for r in results for part in r.chunk(2, 1)], 1),
}


class Head(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), last

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()).sigmoid() + x)


class Heads(nn.Module):
    def __init__(self, join, last=torch.tanh):
        super().__init__()
        self.heads, self.join = nn.ModuleList(Head(last) for _ in range(CALLS)), JOINS[join]

    def forward(self, x):
        return self.join([head(x) for head in self.heads])


def train(model, step):
    x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
    out = step(x)
    weights = torch.linspace(0.5, 1.5, out.numel()).view(out.shape)
    return [out, *torch.autograd.grad((out * out.detach() * weights).sum(), [x, *model.parameters()])]


def backwards(model, backend):
    """What a training step gives, and the names of the backwards of bodies in AOTAutograd's graph."""
    torch._dynamo.reset()
    recorder = AotEagerAndRecordGraphs()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        train(model, torch.compile(model, backend=recorder, fullgraph=True))
        torch._dynamo.reset()
        given = train(model, torch.compile(model, backend=backend, fullgraph=True))
    (backward,) = recorder.bw_graphs
    return given, {n.args[1] for n in backward.graph.nodes if n.target is torch.ops.higher_order.invoke_subgraph}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("join", JOINS)
def test_calls_whose_results_are_joined_share_a_backward(join, backend):
    torch.manual_seed(0)
    model = Heads(join)
    given, names = backwards(model, backend)
    assert len(names) == 1
    torch.testing.assert_close(given, train(model, model))


@pytest.mark.parametrize("last", [twice, thrice], ids=["reads the offset", "views at the offset"])
def test_a_backward_that_sees_where_tangents_begin_is_not_shared(last):
    torch.manual_seed(0)
    model = Heads("stack", last)
    given, names = backwards(model, "aot_eager")
    torch._dynamo.reset()
    flat = train(model, torch.compile(model, backend="aot_eager", fullgraph=True))
    torch.testing.assert_close(given, flat)
    assert len(names) != 1


def test_the_key_of_tangents():
    with FakeTensorMode():
        whole = torch.empty(4, 6)
        key = key_of_tangents([whole[1], None])
        assert key is not None
        assert key == key_of_tangents([whole[2]]) == key_of_tangents([torch.empty(6)])
        assert key not in {key_of_tangents([other]) for other in (whole[:, 1], whole[1, :4], whole[1].double())}
        # One tensor given twice is one value in the backward.
        assert key_of_tangents([whole[1], whole[1]]) != key_of_tangents([one := whole[1], one])


def test_there_is_no_key_of_tangents_that_stock_treats_apart():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    assert key_of_tangents([torch.empty(4)]) is None
    with mode:
        assert key_of_tangents([torch.empty(4).to_sparse()]) is None
    dynamic = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    symbolic = mode.from_tensor(torch.empty(5, 6), symbolic_context=dynamic)
    assert key_of_tangents([symbolic]) is None


def test_a_symbolic_offset_is_asked_without_a_guard():
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    dynamic = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.empty(9, 6), symbolic_context=dynamic)
    with mode:
        part = x.as_strided((6,), (1,), (x.shape[0] - 5) * 6)
    body = torch.fx.symbolic_trace(lambda x: x.sin() + 1)
    guards = len(env.guards)
    assert trace_joint(body, 1, [part, torch.empty(6)], (None, None), None) is None
    assert len(env.guards) == guards
