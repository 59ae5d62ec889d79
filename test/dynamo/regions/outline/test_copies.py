"""Layers that write to their buffers while they train: in a body, on a copy.

See Note [A body writes to a copy].
"""

import contextlib

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from testing.cases import some
from torch import nn
from torch._dynamo.regions.outline import copies
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters


pytestmark = pytest.mark.usefixtures("bodies")
LAYERS = 4


class Layer(nn.Module):
    def __init__(self, does):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("average", torch.linspace(0.5, 1.5, 4))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.does = getattr(self, does)

    def forward(self, x):
        return x + self.does(self.linear(x).tanh()).sin().cos()

    def normalizes(self, x):
        return self.norm(x)

    def averages(self, x):
        self.average.lerp_(x.detach().mean(0), 0.1)
        return x.sin()

    def counts(self, x):
        self.seen.add_(1)
        return x * 2

    def writes_a_part(self, x):
        self.average[1:3] = x.detach().sum(0)[1:3]
        return x.exp()

    def reads(self, x):
        """What it reads is written to by another call, or by the frame."""
        self.seen.copy_((self.average * 2 + 1).sum().long())
        return x.sin()

    def draws(self, x):
        self.average.mul_(0.5).add_(F.dropout(x.detach(), 0.5).mean(0))
        return F.dropout(x, 0.25)


class Reader(Layer):
    """What it writes to is also read by what is differentiated."""

    def multiplies(self, x):
        self.average.lerp_(x.detach().mean(0), 0.1)
        return x * self.average

    def adds_what_is_computed(self, x):
        half = self.average * 0.5
        self.average.copy_(x.detach().mean(0))
        return (x + half).sin()

    def writes_to_another(self, x):
        self.seen.add_(1)
        self.average.copy_(self.seen.expand(4))
        return x * self.average

    def writes_a_view(self, x):
        half = self.average[:2]
        half.copy_(x.detach().sum(0)[2:])
        self.average[0] += 1
        return x.sin()

    def strides_over_it(self, x):
        self.average.add_(self.average.as_strided((2,), (2,)).sum())
        return x.sin()

    def normalizes_in_evaluation_too(self, x):
        return self.norm(x) + F.batch_norm(x, self.norm.running_mean, self.norm.running_var)


def _kinds(of):
    return [name for name in vars(of) if name not in ("__init__", "forward") and not name.startswith("__")]


KINDS = _kinds(Layer)


def _once_each(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def _twice(layers, x):
    return _once_each([*layers, *layers], x)


def _read_between(layers, x):
    before = layers[2].average * 2
    x = _once_each(layers, x)
    return x + before + layers[2].average + layers[1].norm.running_mean


def _written_between(layers, x):
    for k, layer in enumerate(layers):
        if k == 2:
            layers[3].average.mul_(0.5)
        x = layer(x)
    layers[1].average.add_(layers[3].average)
    return x


def _without_grad_for_one(layers, x):
    for k, layer in enumerate(layers):
        with torch.no_grad() if k == 2 else contextlib.nullcontext():
            y = layer(x)
        x = x + y
    return x


LOOPS = [_once_each, _twice, _read_between, _written_between, _without_grad_for_one]


def _share(layers):
    """Some layers hold the buffers of others."""
    for one, other in ((2, 1), (3, 1)):
        layers[one].average = layers[other].average
        layers[one].norm.running_mean = layers[other].norm.running_mean


class Model(nn.Module):
    def __init__(self, kind, loop, shares=False):
        super().__init__()
        torch.manual_seed(0)
        make = Layer if kind in KINDS else Reader
        self.layers = nn.ModuleList(make(kind) for _ in range(LAYERS))
        self.loop = loop
        if shares:
            _share(self.layers)

    def forward(self, x):
        return self.loop(self.layers, x * 1)


X = torch.linspace(-1, 1, 24).view(6, 4)


def _steps(model, run):
    """All that can be seen of three training steps."""
    seen = []
    for number in range(3):
        torch.manual_seed(number)
        loss = run(X + number).square().mean()
        loss.backward()
        seen += [loss.detach(), torch.get_rng_state()]
    seen += [p.grad for p in model.parameters()]
    seen += [b.clone() for b in model.buffers()]
    return seen, [b._version for b in model.buffers()]


def _compiled(make, backend, way):
    torch._dynamo.reset()
    counters.clear()
    model = make()
    if way == "mark":
        for layer in model.layers:
            layer.forward = torch.compiler.nested_compile_region(layer.forward)
    with torch._dynamo.config.patch(use_graph_deduplication=way == "flag"):
        return _steps(model, torch.compile(model, backend=backend))


def _seen_or_refused(run):
    """What ``run`` has seen; None if a backward refuses to read what was written since the forward."""
    try:
        return run()
    except (RuntimeError, torch._dynamo.exc.BackendCompilerFailed) as error:
        assert "modified by an inplace operation" in str(error)
        return None


def _check(make, backend):
    model = make()
    eager = _seen_or_refused(lambda: _steps(model, model))
    flat = _seen_or_refused(lambda: _compiled(make, backend, None))
    for way in ("flag", "mark"):
        if flat is None:  # nor has eager a backward
            _seen_or_refused(lambda way=way: _compiled(make, backend, way))
            continue
        got, versions = _compiled(make, backend, way)
        torch.testing.assert_close(got, flat[0], rtol=1e-4, atol=1e-4)
        assert versions == flat[1]
        if eager is not None and backend != "inductor":  # its random numbers are its own
            torch.testing.assert_close(got, eager[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "loop"),
    [
        *(("normalizes", loop) for loop in LOOPS),
        *((kind, _once_each) for kind in KINDS if kind != "normalizes"),
        *zip(("averages", "draws", "writes_a_part", "counts"), LOOPS[1:], strict=True),
        ("reads", _written_between),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_layers_that_write_train_as_without_regions(kind, loop):
    _check(lambda: Model(kind, loop), "aot_eager")
    if loop is _once_each:
        assert counters["regions"]["traced"] and counters["regions"]["reused"] >= LAYERS - 2
        torch._dynamo.reset()
        with torch._dynamo.config.patch(use_graph_deduplication=True):
            assert any(copies.is_copy(node) for node in _graph(Model(kind, loop)).graph.nodes)


@pytest.mark.parametrize("kind", ["normalizes", "averages", "writes_a_part"])
def test_layers_that_share_what_they_write(kind):
    _check(lambda: Model(kind, _once_each, shares=True), "aot_eager")


@pytest.mark.parametrize("kind", _kinds(Reader))
def test_what_a_gradient_may_need_is_not_copied(kind):
    _check(lambda: Model(kind, _once_each), "aot_eager")
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        graph = _graph(Model(kind, _once_each))
    copied = [n.args[0] for n in graph.graph.nodes if copies.is_copy(n)]
    # Nothing that is differentiated reads how often the norm was called.
    assert all("num_batches_tracked" in node.name for node in copied)


def test_calls_of_which_only_one_writes_to_an_input_share_what_they_can():
    """The stamp writes to a value of the frame, and becomes a call of its own; the input is not copied for the other."""

    def step(x, w):
        y = x @ w
        x.mul_(0.5)
        return y.sin() + x

    region = torch.compiler.nested_compile_region(step)

    def program(x, w):
        return region(x, w), region(x + 1, w)

    def seen(run):
        x = torch.linspace(0, 1, 16).view(4, 4)
        return run(x, torch.eye(4)), x

    torch._dynamo.reset()
    found = []
    graph = _graph(program, lambda compiled: found.append(seen(compiled)))
    torch.testing.assert_close(found[0], seen(program))
    first, second = _calls(graph)
    assert first.args[1] == second.args[1]
    assert not any(copies.is_copy(node) for node in graph.graph.nodes)


WITH_LOOPS = [("normalizes", _once_each), ("writes_a_part", _twice), ("reads", _written_between)]


@pytest.mark.parametrize(("kind", "loop"), some(WITH_LOOPS, WITH_LOOPS[1:]))
def test_in_inductor(kind, loop):
    _check(lambda: Model(kind, loop), "inductor")


def _graph(model, run=lambda compiled: compiled(X)):
    counter = CompileCounterWithBackend("aot_eager")
    with pytest.MonkeyPatch.context() as patch:  # the counter is not known to make graphs functional
        patch.setattr("torch._dynamo.output_graph.makes_functional", lambda backend: True)
        run(torch.compile(model, backend=counter))
    (graph,) = counter.graphs
    return graph


def _calls(graph):
    return graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)


def test_the_input_is_copied_in_the_body_and_written_behind_the_call():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer("averages") for _ in range(2))

        def forward(self, x):
            mark = torch.compiler.nested_compile_region
            step = mark(lambda layer, x: layer.does(x.sin()))
            return step(self.layers[1], step(self.layers[0], x))

    graph = _graph(Small())
    first, second = _calls(graph)
    assert first.args[1] == second.args[1]
    body = getattr(graph, first.args[1])
    (copy,) = (n for n in body.graph.nodes if copies.is_copy(n))
    assert copy.target == "clone" and copy.args[0].op == "placeholder"
    assert body.graph.output_node().args[0][-1] is copy
    for call in (first, second):
        (write,) = (n for n in graph.graph.nodes if n.target == "copy_" and n.args[1].args[0] is call)
        assert write.args[0] in call.args and write.args[0].op == "placeholder"
        assert write.args[1].args[1] == len(body.graph.output_node().args[0]) - 1


def test_what_copies_need_are_no_operators_of_the_program():
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        _graph(Model("normalizes", _once_each))
    counted = dict(counters["graph_deduplication"])
    counters.clear()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        torch.compile(Model("normalizes", _once_each), backend="eager")(torch.ones(6, 4))
    assert counted["operators"] == counters["graph_deduplication"]["operators"]
    assert counted["operators_outlined"] > 0 == counters["graph_deduplication"]["operators_outlined"]


def test_operators_that_run_as_they_are_write_without_a_version():
    """``batch_norm`` has saved its statistics and does not count its write; copying back would."""
    torch._dynamo.reset()
    model = Model("normalizes", _once_each)
    before = [layer.norm.running_mean._version for layer in model.layers]
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        compiled = torch.compile(model, backend="eager")
        (model(X).sum() + compiled(X).sum() + model(X).sum()).backward()
    assert [layer.norm.running_mean._version for layer in model.layers] == before


@pytest.mark.parametrize(
    ("backend", "known"),
    [
        ("eager", False),
        ("aot_eager", True),
        ("aot_eager_decomp_partition", True),
        ("inductor", True),
        (lambda gm, inputs: gm, False),
        (torch._dynamo.backends.common.aot_autograd(fw_compiler=lambda gm, inputs: gm), True),
    ],
    ids=["eager", "aot_eager", "aot_eager_decomp_partition", "inductor", "of the user", "aot_autograd"],
)
def test_which_backends_make_graphs_functional(backend, known):
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "torch._dynamo.output_graph.makes_functional",
            lambda given: found.append(copies.makes_functional(given)) or False,
        )
        model = Model("normalizes", _once_each)
        with torch._dynamo.config.patch(use_graph_deduplication=True):
            torch.compile(model, backend=backend)(torch.ones(6, 4))
    assert found == [known]


@pytest.mark.parametrize(
    ("buffer", "may"),
    [
        (lambda: torch.zeros(8192, dtype=torch.float64), True),
        (lambda: torch.zeros(8193, dtype=torch.float64), False),
        (lambda: torch.zeros(6, 4).t(), False),
        (lambda: torch.zeros(9, 4)[1:5], False),
        (lambda: torch.zeros(9, 4)[:5], False),
    ],
    ids=["most bytes", "more bytes", "transposed", "part of another", "begin of another"],
)
def test_which_inputs_are_copied(buffer, may):
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(LAYERS))
            self.kept = [buffer() for _ in range(LAYERS)]

        def forward(self, x):
            step = torch.compiler.nested_compile_region(self.step)
            for layer, kept in zip(self.layers, self.kept, strict=True):
                x = step(layer, kept, x)
            return x

        def step(self, layer, kept, x):
            y = layer(x).sin()
            kept.copy_(y.detach().sum() + kept.sum())
            return y.cos()

    model, plain = Holds(), Holds()
    plain.load_state_dict(model.state_dict())
    graph = _graph(model)
    copied = [n for n in graph.graph.nodes if n.target == "copy_" and copies.is_copy(n)]
    assert len(copied) == (LAYERS if may else 0)
    plain(X)
    torch.testing.assert_close([*model.kept], [*plain.kept])


def test_an_input_whose_size_moves_is_not_copied():
    class Holds(nn.Module):
        def forward(self, x, kept):
            step = torch.compiler.nested_compile_region(self.step)
            return step(x, kept[1]) + step(x, kept[0])

        def step(self, x, kept):
            kept.add_(1).mul_(2)
            return x.sin().cos()

    model = Holds()
    kept = [torch.ones(5), torch.ones(5)]
    torch._dynamo.mark_dynamic(kept[0], 0)
    torch._dynamo.mark_dynamic(kept[1], 0)
    x = torch.ones(3, requires_grad=True)
    got = torch.compile(model, backend="aot_eager")(x, kept)
    assert got.tolist() == (model(x, [torch.ones(5), torch.ones(5)])).tolist()
    assert [k.tolist() for k in kept] == [[4.0] * 5] * 2


def test_what_is_copied_is_decided_before_operators_are_in_bodies():
    """A call of a body that only reads the input would count as a write that it may hide."""

    def program(x, average):
        for _ in range(3):
            x = x.sin().cos().tan()
            average.add_(x.detach())
        other = average
        for _ in range(3):
            x = x.cos().exp().sigmoid()
            other = other * 0.5 + x.detach()
            x = x * 2
        return x, other

    def seen(compiled):
        x, average = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_(), torch.zeros(4, 4)
        y, other = compiled(x, average)
        y.sum().backward()
        return y.detach(), other, x.grad, average

    # The fixture's lint decides anew before each replacement, and raises if the decision is another.
    with torch._dynamo.config.patch(use_graph_deduplication=True, outlining_policy=False):
        torch.testing.assert_close(seen(torch.compile(program, backend="aot_eager")), seen(program))
    assert counters["graph_deduplication"]["bodies"] > 1


def test_the_frame_reads_a_buffer_beside_the_layers_and_writes_to_it_later():
    class Reads(Model):
        def forward(self, x):
            stats = []
            for layer in self.layers:
                x = layer(x)
                stats.append((self.layers[0].average * 2 + 1).sin())
            with torch.no_grad():
                self.layers[0].average.add_(sum(stats))
            return x

    _check(lambda: Reads("reads", None), "aot_eager")


@pytest.mark.parametrize("way", ["flag", "mark"])
def test_a_call_that_only_reads_is_given_a_copy_of_what_is_written_later(way):
    """Autograd saves the operands of the call, and would find that the input has been written to since."""

    class Region(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(LAYERS))
            self.register_buffer("average", torch.ones(4))

        def forward(self, x):
            step = torch.compiler.nested_compile_region(self.step) if way == "mark" else self.step
            for layer in self.layers:
                x, stat = step(layer, x)
            self.average.add_(stat)
            return x

        def step(self, layer, x):
            return layer(x).sin().cos().tanh(), (self.average * 2 + 1).sin()

    model, other = Region(), Region()
    with torch._dynamo.config.patch(use_graph_deduplication=way == "flag"):
        got = _steps(model, torch.compile(model, backend="aot_eager"))[0]
    torch.testing.assert_close(got, _steps(other, other)[0])
