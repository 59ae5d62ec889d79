"""Note [A body is given its seeds]: random numbers in a body are those of the program without regions, bit for bit."""

from __future__ import annotations

import functools

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from testing.cases import some
from testing.kernels import fresh_graphs
from testing.seeded_graphs import SeededBackend
from torch import nn
from torch._inductor import config as inductor_config
from torch._inductor import inductor_prims
from torch.utils.checkpoint import checkpoint


region = torch.compiler.nested_compile_region


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    # AOTAutograd's cache does not tell the backend of these tests from Inductor.
    with (
        fresh_graphs(),
        torch._functorch.config.patch(enable_autograd_cache=False),
        inductor_config.patch(fx_graph_cache=False),
    ):
        yield
    torch._dynamo.reset()


def _layer(x, w):
    return x + F.dropout(F.gelu(F.dropout(x @ w, 0.3)) @ w.t(), 0.2)


def _dropout(x, weights, mark):
    layer = mark(_layer)
    for w in weights:
        x = layer(x, w)
    return x


def _draws_around(x, weights, mark):
    layer = mark(_layer)
    x = F.dropout(x, 0.1)
    for i, w in enumerate(weights):
        x = layer(x, w)
        if i == 1:
            x = x * torch.rand(8)
    return F.dropout(x, 0.4)


def _attention(x, weights, mark):
    def layer(x, w):
        x = x.view(1, 2, 2, 8)
        return F.scaled_dot_product_attention(x @ w, x, x, dropout_p=0.3).view(4, 8) + torch.randn(8)

    layer = mark(layer)
    for w in weights:
        x = layer(x, w)
    return x


def _multi_head(x, weights, mark):
    def layer(x, w):
        head = functools.partial(F.multi_head_attention_forward, embed_dim_to_check=8, num_heads=2, bias_k=None)
        given = {"in_proj_weight": w.repeat(3, 1), "in_proj_bias": None, "bias_v": None, "add_zero_attn": False}
        rest = {"dropout_p": 0.3, "out_proj_weight": w, "out_proj_bias": None, "need_weights": False}
        x = x.unsqueeze(1)
        return F.dropout(x + head(x, x, x, **given, **rest)[0], 0.2).squeeze(1)

    layer = mark(layer)
    for w in weights:
        x = layer(x, w)
    return x


def _checkpoint(x, weights, mark):
    layer = mark(lambda x, w: checkpoint(_layer, x, w, use_reentrant=False))
    for w in weights:
        x = layer(x, w)
    return x


def _nested(x, weights, mark):
    inner = mark(lambda x, w: F.dropout(torch.relu(x @ w), 0.5) + x.sin())
    outer = mark(lambda x, w: inner(inner(x, w).cos(), w) * torch.rand_like(x))
    for w in weights:
        x = outer(x, w)
    return x


def _twice_on_the_same(x, weights, mark):
    layer = mark(lambda x: F.dropout(x.sin() * 2 + 1, 0.5).cos())
    return layer(x) + layer(x) + layer(x) * weights[0].sum()


def _nested_twice_on_the_same(x, weights, mark):
    inner = mark(lambda x: F.dropout(x.sin() * 2 + 1, 0.5).cos())
    outer = mark(lambda x, w: inner(x) * w.sum() + inner(x).exp() + x)
    for w in weights:
        x = outer(x, w)
    return x


def _without_gradient(x, weights, mark):
    layer = mark(_layer)
    with torch.no_grad():
        y = x
        for w in weights:
            y = layer(y, w)
    z = x.detach()
    for w in weights:
        x, z = layer(x, w), layer(z, w.detach())
    return x * y + z


def _kinds(x, weights, mark):
    def layer(x, w):
        x = F.dropout((x @ w).double(), 0.5).float() + torch.rand_like(x) * torch.randn_like(x)
        return x + torch.rand(8) + torch.randn(4, 1)

    layer = mark(layer)
    for w in weights:
        x = layer(x, w)
    return x


def _never_read(x, weights, mark):
    def layer(x, w):
        F.dropout(x, 0.5)
        return F.dropout((x @ w).relu(), 0.5) * 2, F.dropout(x.cos(), 0.1)

    layer = mark(layer)
    for w in weights:
        x, _ = layer(x, w)
    layer(x, weights[0])
    return F.dropout(x + torch.zeros_like(layer(x, weights[1])[0]), 0.5)


def _never_read_but_in_a_body(x, weights, mark):
    """What reads the draw without effect is of operators that repeat: with them it would be in a body."""
    layer = mark(_layer)
    for w in weights:
        x = layer(x + len(layer(x, w)), w)
    return x


def _written_but_never_read(x, weights, mark):
    def layer(x, w):
        keep = torch.empty(8)
        keep.bernoulli_(0.5)
        x + keep.mul_(2)  # noqa: B018 (which reads what is drawn, and nothing else does)
        return (x @ w).sin() * 2 + x

    layer = mark(layer)
    for w in weights:
        x = layer(x, w)
    return F.dropout(x, 0.5)


def _draws_that_run_in_place(x, weights, mark):
    def layer(x, w):
        keep = torch.empty(4, 1).bernoulli_(0.6)
        return F.dropout(x @ w, 0.3) * keep + torch.empty_like(x).exponential_() + F.alpha_dropout(x, 0.1)

    layer = mark(layer)
    for w in weights:
        x = layer(x, w)
    return x


def _complex_beside_a_seeded_draw(x, weights, mark):
    """Inductor draws complex numbers where they stand: they were in a body, whose seeds are taken before."""
    layer = mark(lambda x, w: (x @ w).relu() + torch.randn(8, dtype=torch.complex64).abs() + torch.rand(8))
    for w in weights:
        x = layer(x, w)
    return x


def _in_place(x, weights, mark):
    """Dropout in place becomes ``bernoulli_``, which runs where it stands."""
    layer = mark(lambda x, w: F.dropout(F.dropout(x @ w + 1, 0.3, inplace=True), 0.2) + torch.rand(8))
    for w in weights:
        x = layer(x, w)
    return x


def _under_vmap(x, weights, mark):
    def layer(x, w):
        same = torch.vmap(lambda row: F.dropout(row, 0.5), randomness="same")(x @ w)
        return F.dropout(same + torch.vmap(torch.rand_like, randomness="different")(x), 0.2)

    layer = mark(layer)
    for w in weights:
        x = layer(x, w)
    return x


PROGRAMS = [
    _dropout,
    _draws_around,
    _attention,
    _multi_head,
    _checkpoint,
    _nested,
    _twice_on_the_same,
    _nested_twice_on_the_same,
    _without_gradient,
    _kinds,
    _never_read,
    _never_read_but_in_a_body,
    _written_but_never_read,
    _draws_that_run_in_place,
    _complex_beside_a_seeded_draw,
    _in_place,
    _under_vmap,
]
# Without gradients, stock's AOTAutograd refuses a checkpoint that draws.
CASES = [(p, grad) for p in PROGRAMS for grad in (True, False) if grad or p is not _checkpoint]


def _run(program, backend, *, grad, mark=False, flag=False):
    """Two steps, each from a seed: results, gradients, and what the generator gives next."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    weights = [torch.randn(8, 8).mul_(0.4).requires_grad_(grad) for _ in range(4)]
    x = torch.randn(4, 8, requires_grad=grad)
    found = []
    with torch._dynamo.config.patch(use_graph_deduplication=flag):

        def run(x, weights):
            return program(x, weights, region if mark else lambda layer: layer)

        compiled = torch.compile(run, backend=backend, fullgraph=True)
        for step in range(2):
            torch.manual_seed(9 + step)
            result = compiled(x, weights)
            found.append(result.detach().clone())
            if grad:
                found += torch.autograd.grad(result.square().sum(), [x, *weights], allow_unused=True)
            found.append(torch.rand(3))
    return found


def _equal(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


HOW = ["mark", "flag", "both"]
FROM_SEEDS = [(p, grad, how) for p, grad in CASES for how in HOW]
# The ways in turn.
BY_DEFAULT = [(p, grad, HOW[number % 3]) for number, (p, grad) in enumerate(CASES)]


@pytest.mark.parametrize(("program", "grad", "how"), some(FROM_SEEDS, BY_DEFAULT))
def test_numbers_from_seeds_are_those_of_flat(program, grad, how):
    wanted = _run(program, SeededBackend(), grad=grad)
    _equal(_run(program, SeededBackend(), grad=grad, mark=how != "flag", flag=how != "mark"), wanted)


IN_PLACE = [(p, grad, backend) for p, grad in CASES for backend in ("eager", "aot_eager")]


@pytest.mark.parametrize(
    ("program", "grad", "backend"), some(IN_PLACE, [c for c in IN_PLACE if c[1] == (c[2] == "aot_eager")])
)
def test_numbers_drawn_in_place_are_those_of_flat(program, grad, backend):
    wanted = _run(program, backend, grad=grad)
    _equal(_run(program, backend, grad=grad, mark=True, flag=True), wanted)


@pytest.mark.parametrize("program", some([_draws_around, _nested, _checkpoint], [_nested]))
def test_inductors_kernels_draw_what_they_draw_flat(program):
    wanted = _run(program, "inductor", grad=True)
    found = _run(program, "inductor", grad=True, mark=True, flag=True)
    # Kernels are fused in another way around a call, so sums of gradients may be rounded in another way.
    torch.testing.assert_close(found, wanted)


def test_all_seeds_are_taken_at_once_and_no_mask_is_saved():
    backend, flat = SeededBackend(), SeededBackend()
    _run(_draws_around, flat, grad=True)
    _run(_draws_around, backend, grad=True, mark=True)
    for each in (backend, flat):
        assert each.count(inductor_prims.seeds) == [1, 0]
    forward = backend.graphs[0]
    (seeds,) = forward.graph.find_nodes(op="call_function", target=inductor_prims.seeds)
    assert seeds.args[0] == 2 * 4 + 3
    calls = forward.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    passed = [call.args[-1].args[2:] for call in calls]  # a slice of the seeds: where it begins and ends
    assert passed == [(1, 3), (3, 5), (6, 8), (8, 10)]
    assert _bytes_saved(forward) == _bytes_saved(flat.graphs[0])


def _bytes_saved(forward):
    """Bytes that the graph returns beside its inputs, of each memory once."""
    (returned,) = forward.graph.output_node().args
    given = {n.meta["val"].untyped_storage()._cdata for n in forward.graph.find_nodes(op="placeholder")}
    storages = {n.meta["val"].untyped_storage() for n in returned if n is not None}
    return sum(s.nbytes() for s in {s._cdata: s for s in storages}.values() if s._cdata not in given)


def test_a_layer_with_dropout_is_whole():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.dropout = nn.Linear(8, 8), nn.Dropout(0.3)

        def forward(self, x):
            return x + self.dropout(self.linear(self.dropout(self.linear(x).sin())).cos())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    graphs = []
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        compiled = torch.compile(Net(), backend=lambda gm, _: graphs.append(gm) or gm)
        compiled(torch.randn(2, 8, requires_grad=True))
    (gm,) = graphs
    assert len(gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)) == 4
    assert not [n for n in gm.graph.nodes if "dropout" in str(n.target)]


def _graph(compiled_by, **settings):
    """What a backend is given of a program with a marked layer, and how many bodies it has."""
    graphs = []
    layer = region(_layer)
    with torch._inductor.config.patch(settings):
        compiled_by(lambda x, w: layer(layer(x, w), w), graphs)
    (gm,) = graphs
    return gm, len({call.args[1] for call in gm.graph.find_nodes(op="call_function", target=_CALL)})


_CALL = torch.ops.higher_order.invoke_subgraph
X, W = torch.ones(4, 8), torch.ones(8, 8)


@pytest.mark.parametrize("setting", ["fallback_random", "align_random_eager"])
def test_no_draw_is_in_a_body_where_draws_run_in_place(setting):
    def compiled_by(program, graphs):
        torch.compile(program, backend=lambda gm, _: graphs.append(gm) or gm)(X, W)

    assert _graph(compiled_by)[1] == 1
    torch._dynamo.reset()
    gm, _ = _graph(compiled_by, **{setting: True})
    bodies = [part.graph for part in gm.children()]
    assert len(gm.graph.find_nodes(op="call_function", target=F.dropout)) == 4
    assert not any(body.find_nodes(op="call_function", target=F.dropout) for body in bodies)


def test_an_export_draws_outside_of_bodies():
    """Who compiles its joint graph may not partition bodies, and would draw again in the backward."""

    class Net(nn.Module):
        def forward(self, x, w):
            layer = region(_layer)
            return layer(layer(x, w), w)

    gm = torch.export.export(Net(), (X, W), strict=True).graph_module
    assert len([n for n in gm.graph.nodes if "dropout" in str(n.target)]) == 4


def test_options_that_run_draws_in_place_inline_regions():
    """Dynamo does not know of the options of a compile; a draw that is never read is run by flat."""
    layer = region(_layer)

    def program(x, w, layer=layer):
        layer(x, w)
        return layer(x, w)

    found = []
    for each in (layer, _layer):
        torch._dynamo.reset()
        torch.manual_seed(0)
        compiled = torch.compile(functools.partial(program, layer=each), options={"fallback_random": True})
        found.append((compiled(X, W), torch.rand(3)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("grad", [True, False])
def test_numbers_of_a_body_with_dynamic_sizes(grad):
    found = []
    for each in (_layer, region(_layer)):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, w, f=each: f(f(x, w), w), backend=SeededBackend(), dynamic=True)
        torch.manual_seed(0)
        x, w = torch.randn(6, 8, requires_grad=grad), torch.randn(8, 8)
        result = compiled(x, w)
        found.append((result.detach(), *(torch.autograd.grad(result.sum(), x) if grad else ())))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_body_is_known_as_one_by_its_graph_and_nothing_is_left_where_its_partition_is_interrupted(monkeypatch):
    """An exception at any moment leaves no state that the next graph's passes would read."""
    from torch._functorch._aot_autograd import region_seeds

    noted = []

    def interrupted(gm):
        noted.append(any(region_seeds._IN_JOINT_BODY in node.meta for node in gm.graph.nodes))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch._inductor.compile_fx, "is_joint_body", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _run(_dropout, SeededBackend(), grad=True, mark=True)
    assert noted == [True]
    wanted = _run(_dropout, SeededBackend(), grad=True)
    _equal(_run(_dropout, SeededBackend(), grad=True, mark=True), wanted)
