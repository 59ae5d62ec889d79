"""Regions that write to what the graph takes: one body where that is right, results and state as in eager everywhere.

See Note [A region may write to an input].
"""

import copy
import re

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from testing.marked_cases import region
from torch._dynamo.regions.outcomes import outcomes
from torch._dynamo.testing import EagerAndRecordGraphs
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code


pytestmark = pytest.mark.usefixtures("bodies")
CALL = torch.ops.higher_order.invoke_subgraph


class Store:
    """A layer's part of a cache."""

    def __init__(self, tensor):
        self.kept = tensor


class Layer(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, store, at):
        y = self.linear(x).relu()
        store.kept.index_copy_(0, at, y)
        seen = store.kept.softmax(0) @ y.t()
        return (seen.t() @ store.kept).tanh() + x


PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def _x():
    return torch.randn(2, 4)


def _chain(call, *parts):
    """A program that calls ``call`` with the first of all ``parts``, then with the second, and so on."""

    def f(x):
        for each in zip(*parts, strict=True):
            x = call(*each, x)
        return x

    return f


def _run_layers(mark, stores, layers=None, after=lambda x, stores: x):
    layers = layers or [Layer() for _ in stores]
    call = mark(lambda layer, x, store, at: layer(x, store, at))

    def f(x, at):
        for layer, store in zip(layers, stores, strict=True):
            x = call(layer, x, store, at)
        return after(x, stores)

    return f, (_x(), torch.tensor([1, 3])), [s.kept for s in stores] + layers


@program
def each_layer_has_a_store(mark):
    return _run_layers(mark, [Store(torch.zeros(6, 4)) for _ in range(3)])


@program
def the_frame_reads_the_stores_behind(mark):
    return _run_layers(
        mark, [Store(torch.zeros(6, 4)) for _ in range(3)], after=lambda x, s: (x, s[0].kept.sum(), s[1].kept)
    )


@program
def the_frame_returns_a_view_of_a_store(mark):
    return _run_layers(
        mark, [Store(torch.zeros(6, 4)) for _ in range(3)], after=lambda x, s: (x, s[1].kept.t(), s[2].kept[:2])
    )


@program
def two_layers_have_one_store(mark):
    a, b = Store(torch.zeros(6, 4)), Store(torch.zeros(6, 4))
    return _run_layers(mark, [a, b, a, b])


@program
def the_stores_are_parts_of_one_memory(mark):
    whole = torch.zeros(18, 4)
    return _run_layers(mark, [Store(whole[i : i + 6]) for i in (0, 6, 12)])


@program
def the_stores_overlap(mark):
    whole = torch.zeros(12, 4)
    return _run_layers(mark, [Store(whole[i : i + 6]) for i in (0, 2, 4)])


@program
def a_store_is_also_an_argument(mark):
    stores = [Store(torch.zeros(6, 4)) for _ in range(3)]
    layers = [Layer() for _ in stores]

    @mark
    def call(layer, x, store, other, at):
        y = layer(x, store, at)
        return y + other.sum(), y * store.kept[:2]

    def f(x, at):
        for layer, store in zip(layers, stores, strict=True):
            x, _ = call(layer, x, store, store.kept, at)
        return x

    return f, (_x(), torch.tensor([0, 2])), [s.kept for s in stores]


@program
def a_view_that_the_frame_made_is_written(mark):
    @mark
    def call(view, x):
        view.mul_(0.5).add_(x.sin())
        return view.exp() * x.cos().sin()

    def f(x, kept):
        for i in range(3):
            x = call(kept[i], x)
        return x + kept.sum()

    return f, (_x(), torch.randn(3, 2, 4)), []


@program
def an_argument_and_its_view_are_written(mark):
    @mark
    def call(kept, view, x):
        kept.add_(x.sin())
        view.mul_(2)
        return (kept * view.t()).sin().cos()

    def f(x, a, b):
        x = call(a, a.t(), x)
        return call(b, b.t(), x)

    return f, (torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)), []


@program
def a_parameter_is_written(mark):
    layers = [nn.Linear(4, 4) for _ in range(3)]

    @mark
    def call(layer, x):
        layer.weight.mul_(0.9).add_(0.1)
        return F.linear(x, layer.weight, layer.bias).relu().sin()

    return lambda x: call(layers[2], call(layers[1], call(layers[0], x))), (_x(),), layers


@program
def a_counter_and_slices_are_written(mark):
    layers = [Layer() for _ in range(3)]

    @mark
    def call(layer, kept, x):
        layer.count.add_(1)
        kept[:, 1:3] = x[:, 1:3].sin()
        kept[0] += layer.count
        torch.mul(x, 2, out=layer.out)
        return layer.linear(kept).relu() * layer.count

    for layer in layers:
        layer.out = torch.zeros(2, 4)
    kept = [torch.randn(2, 4) for _ in layers]
    return _chain(call, layers, kept), (_x(),), [layers, kept, [layer.out for layer in layers]]


@program
def the_shape_of_a_store_changes_behind(mark):
    def after(x, stores):
        stores[1].kept.t_()
        x = x @ stores[1].kept
        stores[1].kept.t_()
        return x

    return _run_layers(mark, [Store(torch.zeros(6, 4)) for _ in range(3)], after=after)


@program
def batch_norm_trains(mark):
    layers = [nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.ReLU()) for _ in range(3)]
    call = mark(lambda layer, x: layer(x).sin())
    return lambda x: call(layers[2], call(layers[1], call(layers[0], x))), (torch.randn(6, 4),), layers


@program
def what_a_call_returns_is_not_needed(mark):
    @mark
    def call(kept, x):
        kept.add_(x.sin().exp())
        return kept.cos().sin() * x

    def f(x, a, b, c):
        y = call(b, x) + call(a, x) + call(c, x)
        _ = y + 1
        return x + 1

    return f, (_x(), *(torch.randn(2, 4) for _ in range(3))), []


@program
def one_input_is_given_twice(mark):
    @mark
    def call(kept, other, x):
        kept.add_(x.sin().exp())
        return other.cos().sin() * x

    shared = torch.randn(2, 4)
    return lambda x, a, b, c, d: call(c, d, call(a, b, x)), (_x(), shared, shared, torch.randn(2, 4), shared), []


@program
def a_store_of_odd_strides(mark):
    stores = [Store(torch.zeros(4, 6).t()), Store(torch.zeros(12, 4)[::2]), Store(torch.zeros(4, 6).t())]
    return _run_layers(mark, stores)


@program
def a_store_of_low_precision(mark):
    @mark
    def call(store, x):
        store.kept.copy_(x.sin())
        return store.kept.float().cos() * x.exp()

    stores = [Store(torch.zeros(2, 4, dtype=torch.bfloat16)) for _ in range(3)]
    return _chain(call, stores), (_x(),), [s.kept for s in stores]


@program
def a_region_in_a_region_writes(mark):
    inner = mark(lambda store, x: store.kept.mul_(0.5).add_(x.sin()).exp() * x.cos())

    @mark
    def outer(stores, x):
        return inner(stores[1], inner(stores[0], x).sin()).relu() + stores[0].kept

    stores = [[Store(torch.zeros(2, 4)) for _ in range(2)] for _ in range(3)]
    return _chain(outer, stores), (_x(),), [s.kept for pair in stores for s in pair]


@program
def grad_mode_is_on_inside(mark):
    @mark
    def call(layer, store, x):
        with torch.enable_grad():
            y = layer(x).sin().relu()
        store.kept.copy_(y.detach())
        return store.kept.exp() * y.cos()

    layers, stores = [nn.Linear(4, 4) for _ in range(3)], [Store(torch.zeros(2, 4)) for _ in range(3)]
    run = _chain(call, layers, stores)
    return lambda x: run(x).detach(), (_x(),), [s.kept for s in stores]


@program
def a_random_number_is_kept(mark):
    @mark
    def call(store, x):
        store.kept.add_(x.sin().exp())
        store.kept.mul_(torch.rand_like(x))
        return store.kept.exp().sin() * x.cos()

    stores = [Store(torch.zeros(2, 4)) for _ in range(3)]
    return _chain(call, stores), (_x(),), [s.kept for s in stores]


@torch.library.custom_op("test_region_writes::keep", mutates_args=("kept",))
def keep(kept: torch.Tensor, x: torch.Tensor) -> None:
    kept.add_(x.sum())


@torch.library.custom_op("test_region_writes::warm", mutates_args=())
def warm(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@warm.register_fake
def _(x):
    return torch.empty_like(x)


def _with_operator(mark, store):
    """Layers in each of which ``store`` writes to a part of a cache, and goes on with what it returns, if anything."""
    layers, kept = [nn.Linear(4, 4) for _ in range(3)], [torch.zeros(6, 4) for _ in range(3)]

    @mark
    def call(layer, k, x):
        y = layer(x).relu()
        made = store(k, y)
        z = y if made is None else made
        return (z @ k.t()).softmax(-1) @ k + x

    return _chain(call, layers, kept), (_x(),), kept


@program
def an_operator_of_the_user_writes(mark):
    return _with_operator(mark, keep)


@program
def an_operator_of_the_user_writes_inside(mark):
    def store(kept, y):
        kept.add_(y.sum())
        made = y.cos()
        keep(made, y)
        return made

    return _with_operator(mark, store)


@program
def an_operator_of_the_user_reads(mark):
    def store(kept, y):
        kept[1:3] = warm(y)

    return _with_operator(mark, store)


@program
def two_stores_are_exchanged(mark):
    @mark
    def call(a, b, x):
        old = a.clone()
        a.copy_(b.sin())
        b.copy_(old.cos())
        return x + a * b

    kept = [torch.randn(2, 4) for _ in range(4)]

    def f(x):
        x = call(kept[0], kept[1], x)
        x = call(kept[2], kept[3], x)
        x = call(kept[1], kept[2], x)
        return call(kept[0], kept[0], x)

    return f, (_x(),), kept


@program
def a_store_is_the_result(mark):
    call = mark(lambda k, x: k.add_(x.sin().cos()))
    kept = [torch.zeros(2, 4) for _ in range(3)]

    def f(x):
        for k in kept:
            x = call(k, x) * 1
        return x, call(kept[0], x)

    return f, (_x(),), kept


def _leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, nn.Module):
        return [*value.parameters(), *value.buffers()]
    return [t for v in value for t in _leaves(v)]


def _observed(name, mark, backend, mode, dynamic):
    torch._dynamo.reset()
    torch.manual_seed(0)
    f, args, state = PROGRAMS[name](mark)
    run = torch.compile(f, backend=backend, dynamic=dynamic) if backend else f
    results = []
    with mode():
        for _ in range(3):
            torch.manual_seed(1)
            results.append(copy.deepcopy(_leaves([run(*args)])))
    return [*results[0], *results[1], *results[2], *_leaves(args), *_leaves(state)]


def _same(got, wanted, exact):
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, **({"rtol": 0, "atol": 0} if exact else {}))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name, backend):
    wanted = _observed(name, lambda f: f, None, torch.no_grad, None)
    got = _observed(name, region, backend, torch.no_grad, None)
    _same(got, wanted, exact=backend == "eager")
    assert outcomes()


# All of them are right there; these differ in what Inductor is asked for.
IN_INDUCTOR = [
    "each_layer_has_a_store",
    "two_layers_have_one_store",
    "the_stores_overlap",
    "what_a_call_returns_is_not_needed",
    "a_store_of_odd_strides",
    "a_store_is_the_result",
]


@pytest.mark.parametrize("name", IN_INDUCTOR)
def test_in_inductor_as_without_regions(name):
    # Its random numbers and precisions are its own, without regions too.
    wanted = _observed(name, lambda f: f, "inductor", torch.no_grad, None)
    got = _observed(name, region, "inductor", torch.no_grad, None)
    _same(got, wanted, exact=False)


def _graph(name, grad=False):
    """The calls in the graph of a program, and the bodies that they name."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    f, args, _ = PROGRAMS[name](region)
    backend = EagerAndRecordGraphs()
    with torch.set_grad_enabled(grad):
        torch.compile(f, backend=backend)(*args)
    (graph,) = backend.graphs
    calls = graph.graph.find_nodes(op="call_function", target=CALL)
    return calls, {call.args[1]: getattr(graph, call.args[1]) for call in calls}


@pytest.mark.parametrize(
    "name", ["each_layer_has_a_store", "the_frame_reads_the_stores_behind", "a_counter_and_slices_are_written"]
)
def test_writing_layers_share_one_body(name):
    calls, bodies = _graph(name)
    assert len(calls) == 3 and len(bodies) == 1
    # The first call of the counter is another than the others.
    assert counters["regions"]["reused"] == (1 if name == "a_counter_and_slices_are_written" else 2)


def test_a_store_that_several_layers_write_is_written_in_their_bodies():
    calls, bodies = _graph("two_layers_have_one_store")
    assert len(calls) == 4 and len(bodies) == 1


@pytest.mark.parametrize(
    "name",
    [
        "the_stores_are_parts_of_one_memory",
        "a_view_that_the_frame_made_is_written",
        "a_parameter_is_written",
        "a_region_in_a_region_writes",
        "an_operator_of_the_user_writes",
    ],
)
def test_a_write_that_is_no_input_alone_stays_in_the_graph(name):
    _, bodies = _graph(name)
    for body in bodies.values():
        assert not [
            n for n in body.graph.nodes if n.op.startswith("call") and re.search("_$|setitem|keep", str(n.target))
        ], name


def test_with_grad_mode_writes_stay_in_the_graph():
    f, args, _ = _run_layers(region, [Store(torch.zeros(6, 4)) for _ in range(3)])
    backend = EagerAndRecordGraphs()
    torch.compile(f, backend=backend)(*args)
    calls = backend.graphs[0].graph.find_nodes(op="call_function", target=CALL)
    assert calls and not any("index_copy_" in str(m.code) for m in backend.graphs[0].children())


def test_inductor_writes_in_place():
    """No copy of a store is made: the flat program makes none."""

    @region
    def call(store, x, at):
        store.kept.index_copy_(0, at, x.sin())
        return store.kept.sum(0) * x.cos()

    stores = [Store(torch.zeros(600, 4)) for _ in range(3)]

    def f(x, at):
        for store in stores:
            x = call(store, x, at)
        return x

    with torch.no_grad():
        _, (code,) = run_and_get_code(torch.compile(f, backend="inductor"), _x(), torch.tensor([1, 3]))
    assert code.count("auto_functionalized_subgraph_0(auto_functionalized_subgraph_0_args)") == 3
    assert "empty_strided_cpu" in code and "empty_strided_cpu((600, 4)" not in code


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_autograd_is_not_asked_what_it_refuses_to_say(backend):
    """A view made without gradients, whose base is written to with them, has no `grad_fn` and no `is_leaf`."""

    def compiled(mark):
        @mark
        def toggled(x, y):
            torch.set_grad_enabled(not torch.is_grad_enabled())
            return x @ y, x

        @mark
        def viewed(x):
            view = x.view(-1).view(x.shape)
            x.detach().add_(1)
            return view * 2

        def program(x, y):
            h = x * 1
            outs = []
            for _ in range(4):
                outs.append(toggled(h, y)[0])
                outs.append(viewed(h))
            return outs

        torch._dynamo.reset()
        x, y = torch.arange(16.0).view(4, 4).requires_grad_(), torch.eye(4)
        return [out.detach() for out in torch.compile(program, backend=backend, fullgraph=True)(x, y)]

    torch.testing.assert_close(compiled(torch.compiler.nested_compile_region), compiled(lambda block: block))
