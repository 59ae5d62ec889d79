"""Note [A body serves sizes of several names]: layers with lengths of their own share a body, with flat's guards."""

import pytest
import torch
import torch._dynamo
from testing.automatic_cases import outcomes_of
from testing.cases import some
from testing.own_lengths import KINDS, LAYERS, Layer, Model, X, guards_on_sizes
from torch import nn
from torch._dynamo.regions.outcomes import RegionInlineReason, forget_outcomes
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters


@pytest.fixture(autouse=True)
def flag():
    counters.clear()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=True), torch.no_grad():
        yield


class Lifted(Layer):
    """Its result has the length, which no operator of it computes."""

    def forward(self, x, mask):
        return x + self.second(self.read(self.first(x).tanh(), mask)).sin(), self.kept.sin() * 2 + 1


class Writes(Layer):
    """It writes to its tensor, which is an input of the frame."""

    def forward(self, x, mask):
        self.kept.mul_(2).add_(x.mean())
        return x + self.second((x @ self.kept.t()).tanh() @ self.kept)


class Draws(Layer):
    def forward(self, x, mask):
        scores = torch.nn.functional.dropout((x @ self.kept.t()).sin(), 0.5, training=True)
        return x + self.second(scores @ self.kept)


class Of(Model):
    """A model of layers of one class."""

    kind: type[Layer]

    def __init__(self, kind):
        super().__init__(kind)
        self.layers = nn.ModuleList(self.kind(kind, k) for k in range(LAYERS))


class OfWriters(Of):
    kind = Writes


class OfDrawers(Of):
    kind = Draws


class WithoutGrad(Model):
    """Its frame begins with grad mode, and makes nothing that requires grad."""

    def forward(self, x, mask):
        with torch.no_grad():
            return super().forward(x, mask)


class WithGradBehind(WithoutGrad):
    """A gradient flows back to the weights of one layer, which is none of those that share a body."""

    def forward(self, x, mask):
        return self.layers[0].second(super().forward(x, mask))


class Beside(Model):
    """The layers do not depend on one another."""

    def forward(self, x, mask):
        return [layer(x, mask) for layer in self.layers]


class Collects(Of):
    kind = Lifted
    first_used = 0

    def forward(self, x, mask):
        found = []
        for k, layer in enumerate(self.layers):
            x, other = layer(x, mask)
            if k >= self.first_used:
                found.append(other)
        return x, found


class CollectsSome(Collects):
    """It uses a result of the last layers that it does not use of the others."""

    first_used = LAYERS - 2


def _run(program, model, lengths, other=None):
    """Runs ``program`` where each layer holds its tensor of ``lengths``."""
    mask = model.hold(max(lengths), other)
    for k, (layer, length) in enumerate(zip(model.layers, lengths, strict=True)):
        layer.kept = torch.linspace(k, 1, length * 4).view(length, 4)
        if other is None:
            layer.other = torch.linspace(k, 2, length * 4).view(length, 4)
    torch.manual_seed(0)
    result = program(X, mask)
    return result, [layer.kept.clone() for layer in model.layers]


def _same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def _differs(kind):
    return 9 if kind == "compares_its_two" else None


def _second(make, kind, backend):
    """A model that was compiled for two lengths, so that they are symbols now; and the counter of its compiles."""
    model = make(kind).eval()
    counter = CompileCounterWithBackend(backend)
    program = torch.compile(model, backend=counter)
    for length in (6, 7):
        counters.clear()
        forget_outcomes()
        got, expected = (_run(run, model, [length] * LAYERS, _differs(kind)) for run in (program, model))
        _same(got, expected)
    return model, program, counter


def _reasons():
    return [outcome.reason for name in ("Layer", "Lifted") for outcome in outcomes_of(name)]


@pytest.mark.parametrize("kind", KINDS)
def test_layers_with_lengths_of_their_own_share_a_body(kind):
    _second(Model, kind, "aot_eager")
    assert counters["regions"]["reused"] == LAYERS - 2
    assert RegionInlineReason.OWN_SIZES not in _reasons()
    assert counters["graph_deduplication"]["bodies"] == 1


GUARDED = [
    (*each, backend)
    for each in [*((Model, kind) for kind in KINDS), (CollectsSome, "takes_half")]
    for backend in ("aot_eager", "inductor")
]


@pytest.mark.parametrize("make, kind, backend", some(GUARDED, GUARDED[::4] + GUARDED[3::8]))
@torch._inductor.config.patch(fx_graph_cache=False)
@torch._functorch.config.patch(enable_autograd_cache=False)
def test_guards_on_sizes_are_those_of_flat(make, kind, backend):
    # Without caches: a hit brings the guards of the program that was compiled, which may have had more.
    found = []
    for on in (True, False):
        torch._dynamo.reset()
        with guards_on_sizes() as guards, torch._dynamo.config.patch(use_graph_deduplication=on):
            _second(make, kind, backend)
        found.append(guards)
    assert found[0] == found[1]


MODELS = [
    *((Model, kind) for kind in ("attends", "attends_to_two", "grows", "takes_half")),
    *((Beside, "attends"), (Collects, "attends"), (Collects, "grows"), (OfWriters, "attends")),
]
RUN = [(*each, backend) for each in MODELS for backend in ("eager", "aot_eager", "inductor")]


@pytest.mark.parametrize("make, kind, backend", some(RUN, RUN[1::4]))
def test_each_call_has_the_length_of_its_own_tensor(make, kind, backend):
    frames = []
    for on in (True, False):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(use_graph_deduplication=on):
            model, program, counter = _second(make, kind, backend)
            for lengths in ([9, 4, 11, 5, 8], [5, 5, 12, 12, 4]):
                got, expected = (_run(run, model, lengths) for run in (program, model))
                _same(got, expected)
        frames.append(counter.frame_count)
    assert frames[0] == frames[1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@torch._inductor.config.patch(fallback_random=True)
def test_draws_are_those_of_flat(backend):
    """Flat Inductor draws eager's numbers for some lengths only."""
    found = []
    for on in (True, False):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(use_graph_deduplication=on):
            model, program, _ = _second(OfDrawers, "attends", backend)
            found.append(_run(program, model, [9, 4, 11, 5, 8]))
    _same(*found)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_stamps_with_other_used_results_share_a_body_of_their_own(backend):
    model, program, _ = _second(CollectsSome, "attends", backend)
    assert counters["graph_deduplication"]["bodies"] == 2
    got, expected = (_run(run, model, [9, 4, 11, 5, 8]) for run in (program, model))
    _same(got, expected)


@pytest.mark.parametrize("make, kind", [(Model, "grows"), (Collects, "attends"), (OfWriters, "attends")])
def test_what_a_body_returns_with_other_symbols_is_what_it_makes(make, kind):
    with torch._dynamo.config.patch(verify_region_reuse=True):  # the body is run as well
        _second(make, kind, "aot_eager")
    assert counters["regions"]["verified"]


moved = []


def _first_call_last(graph):
    """Moves the first call of a body, with its results, behind the last one."""
    calls = graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    if len(calls) < LAYERS - 1:
        return
    last = max([calls[-1], *calls[-1].users], key=list(graph.nodes).index)
    for node in reversed([calls[0], *calls[0].users]):
        last.append(node)
    moved.append(len(calls))


def test_a_body_is_lowered_for_its_own_symbols_whichever_call_comes_first():
    moved.clear()
    with torch._inductor.config.patch(post_grad_custom_post_pass=_first_call_last):
        model, program, counter = _second(Beside, "attends", "inductor")
        assert moved
        got, expected = (_run(run, model, [9, 4, 11, 5, 8]) for run in (program, model))
        _same(got, expected)


def test_a_pass_moves_another_call_to_the_front_before_the_backend_has_met_one():
    """The body is made for that call's symbols; what Inductor guards of them holds for all calls."""
    found = []
    for flag in (False, True):
        torch._dynamo.reset()
        moved.clear()
        with (
            # A hit brings the guards of another program.
            torch._functorch.config.patch(enable_autograd_cache=False),
            torch._inductor.config.patch(pre_grad_custom_pass=_first_call_last, fx_graph_cache=False),
            torch._dynamo.config.patch(use_graph_deduplication=flag),
        ):
            model, program, counter = _second(Beside, "attends", "inductor")
            assert bool(moved) == flag
            frames = []
            for lengths in ([7, 7, 5000, 7, 7], [7, 7, 7, 5000, 7], [9, 4, 11, 5, 8]):
                got, expected = (_run(run, model, lengths) for run in (program, model))
                _same(got, expected)
                frames.append(counter.frame_count)
            found.append(frames)
    assert found[0] == found[1]


def test_marked_layers_share_a_body():
    with torch._dynamo.config.patch(use_graph_deduplication=False):
        model = Model("grows")
        marked = torch.compiler.nested_compile_region(lambda layer, x, mask: layer(x, mask))

        def forward(x, mask):
            for layer in model.layers:
                x = marked(layer, x, mask)
            return x

        program = torch.compile(forward, backend="inductor")
        for length in (6, 7):
            counters.clear()
            got, expected = (_run(run, model, [length] * LAYERS) for run in (program, model))
            _same(got, expected)
    assert counters["regions"]["reused"] == LAYERS - 2


def _guards_bodies(gm, inputs):
    """A backend that guards sizes of tensors in a body, as Inductor may when it lowers the body."""
    for body in gm.children():
        for node in body.graph.find_nodes(op="placeholder") if isinstance(body, torch.fx.GraphModule) else ():
            value = node.meta["example_value"]
            bool(isinstance(value, torch.Tensor) and value.size(0) > 4)
    return gm


def test_what_a_backend_guards_in_a_body_is_guarded_for_each_call():
    model = Model("attends")
    program = torch.compile(model, backend=_guards_bodies)
    for length in (6, 7):
        _run(program, model, [length] * LAYERS)
    with torch.compiler.set_stance("fail_on_recompile"):
        _run(program, model, [3, 6, 7, 8, 9])  # the first layer has no body
        for k in range(1, LAYERS):
            lengths = [6] * LAYERS
            lengths[k] = 3
            with pytest.raises(RuntimeError, match="recompile"):
                _run(program, model, lengths)


class FrameAsks(Model):
    """The frame asks for the length of one layer's tensor."""

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return x * 2 if self.layers[2].kept.size(0) > 4 else x


class FrameJoins(Model):
    """The frame finds that two lengths are one."""

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return x + (self.layers[2].kept + self.layers[3].kept).sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("make, bodies, calls", [(FrameAsks, 1, LAYERS - 2), (FrameJoins, 2, LAYERS - 1)])
def test_a_length_of_which_the_frame_knows_more_shares_no_body_with_the_others(make, bodies, calls, backend):
    found = []
    for on in (True, False):
        torch._dynamo.reset()
        with guards_on_sizes() as guards, torch._dynamo.config.patch(use_graph_deduplication=on):
            model, program, counter = _second(make, "attends", backend)
            if on:
                assert counters["regions"]["reused"] == LAYERS - 2
                assert counters["graph_deduplication"]["calls"] == calls
                assert counters["graph_deduplication"]["bodies"] == bodies
            got, expected = (_run(run, model, [7, 7, 3, 3, 7]) for run in (program, model))
            _same(got, expected)
        found.append((guards, counter.frame_count))
    assert found[0] == found[1]


@pytest.mark.parametrize("make", [Model, WithGradBehind])
def test_with_gradients_each_length_has_operators_of_its_own(make):
    with torch.enable_grad():
        _second(make, "attends", "aot_eager")
    assert RegionInlineReason.OWN_SIZES in _reasons()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("kind", ["attends", "attends_to_two", "grows"])
@torch._inductor.config.patch(fx_graph_cache=False)
@torch._functorch.config.patch(enable_autograd_cache=False)
def test_a_frame_that_makes_nothing_that_requires_grad_shares_bodies(kind, backend):
    found = []
    for on in (True, False):
        torch._dynamo.reset()
        options = torch._dynamo.config.patch(use_graph_deduplication=on)
        with torch.enable_grad(), guards_on_sizes() as guards, options:
            model, program, counter = _second(WithoutGrad, kind, backend)
            if on:
                assert counters["graph_deduplication"]["bodies"] == 1
                assert RegionInlineReason.OWN_SIZES not in _reasons()
            got, expected = (_run(run, model, [9, 4, 11, 5, 8]) for run in (program, model))
            _same(got, expected)
        found.append((guards, counter.frame_count))
    assert found[0] == found[1]
