"""Layers whose own tensors have a length that moves: reused with symbols of their own, and the guards tracing makes."""

import pytest
import torch
import torch._dynamo
from testing.automatic_cases import outcomes_of
from testing.own_lengths import KINDS, LAYERS, Layer, Model, X, guards_on_sizes
from torch import nn
from torch._dynamo.regions.outcomes import RegionInlineReason, forget_outcomes
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters


@pytest.fixture(autouse=True)
def flag():
    counters.clear()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        yield


def _compiled(model, backend="eager"):
    counter = CompileCounterWithBackend(backend)
    return torch.compile(model, backend=counter), counter


def _run(program, model, length, other=None):
    mask = model.hold(length, other)
    result = program(X, mask)
    return result, [layer.kept.clone() for layer in model.layers]


def _same(one, other):
    torch.testing.assert_close(one, other)


def _differs(kind):
    return 9 if kind == "compares_its_two" else None


def _second(kind, backend="eager"):
    """A model that was compiled for two lengths, so that they are symbols now; and the counter of its compiles."""
    model = Model(kind)
    program, counter = _compiled(model, backend)
    for length in (6, 7):
        counters.clear()
        forget_outcomes()
        got = _run(program, model, length, _differs(kind))
        _same(got, _run(Model.forward.__get__(model), model, length, _differs(kind)))
    return model, program, counter


@pytest.mark.parametrize("kind", KINDS)
def test_layers_with_lengths_of_their_own_are_reused(kind):
    _second(kind, "aot_eager")
    assert counters["regions"]["reused"] == LAYERS - 2
    shares_a_body = kind in ("adds_the_mask", "compares_with_the_mask")
    reasons = [outcome.reason for outcome in outcomes_of("Layer")]
    assert (RegionInlineReason.OWN_SIZES in reasons) != shares_a_body


@pytest.mark.parametrize("kind", KINDS)
def test_a_reuse_is_what_tracing_makes(kind):
    with torch._dynamo.config.patch(verify_region_reuse=True):
        _second(kind)
    assert counters["regions"]["verified"]


@pytest.mark.parametrize("kind", KINDS)
def test_another_length_of_one_layer_compiles_as_often_as_flat(kind):
    seen, length = [], 3
    for on in (True, False):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(use_graph_deduplication=on):
            model, program, counter = _second(kind)
            # All layers, then one of them.
            for each in (slice(None), slice(LAYERS - 1, None)):
                mask = model.hold(7, _differs(kind))
                for layer in model.layers[each]:
                    layer.kept = torch.linspace(1, 2, 4 * length).view(length, 4)
                if each.start is None:
                    mask = torch.linspace(0, 1, length)
                try:
                    got = program(X, mask)
                except RuntimeError:
                    got = "raises"  # a mask of another length, or keys and values of two
                seen.append((counter.frame_count, got))
    half = len(seen) // 2
    for (frames, got), (flat_frames, flat) in zip(seen[:half], seen[half:], strict=True):
        assert frames == flat_frames
        if isinstance(got, torch.Tensor):
            _same(got, flat)
        else:
            assert got == flat


def _guards(on, kind):
    torch._dynamo.reset()
    with guards_on_sizes() as found, torch._dynamo.config.patch(use_graph_deduplication=on):
        _second(kind)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_guards_on_sizes_are_those_of_flat(kind):
    assert _guards(True, kind) == _guards(False, kind)


def _twice(kind, change):
    """Compiles a model for two lengths, of which ``change`` makes what the layers hold; returns what is at the end."""
    model = Model(kind)
    program, counter = _compiled(model)
    for length in (6, 7):
        counters.clear()
        mask = model.hold(length)
        change(model.layers, length)
        _same(program(X, mask), model(X, mask))
    return model, program, counter, mask


def test_a_length_with_another_hint_is_traced():
    def other_lengths(layers, length):
        for k, layer in enumerate(layers):
            layer.kept = torch.linspace(k, 1, 4 * (length + k)).view(-1, 4)

    _twice("attends", other_lengths)
    assert not counters["regions"]["reused"]


def test_a_length_within_other_bounds_is_traced():
    model = Model("attends")
    program, _ = _compiled(model)
    mask = model.hold(6)
    for k, layer in enumerate(model.layers):
        torch._dynamo.mark_dynamic(layer.kept, 0, min=2, max=10 + k % 2)
    _same(program(X, mask), model(X, mask))
    assert counters["regions"]["reused"] == LAYERS - 3  # the first two of either kind, one of which takes the input


def test_a_tensor_of_other_dimensions_is_traced():
    def other_dimensions(layers, length):
        for layer in layers[::2]:
            layer.kept = layer.kept.unsqueeze(1)

    _twice("returns_its_length", other_dimensions)
    assert counters["regions"]["reused"] == LAYERS - 3


def test_layers_that_share_a_tensor_have_its_symbol():
    def one_tensor(layers, length):
        for layer in layers[1:]:
            layer.kept = layers[0].kept

    model, program, counter, mask = _twice("attends", one_tensor)
    frames = counter.frame_count
    model.layers[2].kept = model.layers[2].kept.clone() * 2
    _same(program(X, mask), model(X, mask))
    assert counter.frame_count == frames + 1


@pytest.mark.parametrize("kind", ["attends", "adds_the_mask", "takes_half", "grows"])
def test_marked_layers_with_lengths_of_their_own(kind):
    with torch._dynamo.config.patch(use_graph_deduplication=False):
        model = Model(kind)
        marked = torch.compiler.nested_compile_region(lambda layer, x, mask: layer(x, mask))

        def forward(x, mask):
            for layer in model.layers:
                x = marked(layer, x, mask)
            return x

        program, _ = _compiled(forward, "inductor")
        for length in (6, 7):
            counters.clear()
            _same(_run(program, model, length), _run(model, model, length))
    assert counters["regions"]["reused"] == LAYERS - 2


@pytest.mark.parametrize("kind", ["attends_to_two", "adds_the_mask", "grows"])
def test_gradients_of_layers_with_lengths_of_their_own(kind):
    model = Model(kind)
    program, _ = _compiled(model, "aot_eager")
    for length in (6, 7):
        grads = []
        for run in (program, model):
            mask = model.hold(length)
            for layer in model.layers:
                layer.kept.requires_grad_()
            held = [layer.kept for layer in model.layers]
            run(X, mask).sum().backward()
            grads.append([p.grad for p in [*model.parameters(), *held]])
            model.zero_grad()
        _same(*grads)


def test_a_body_is_shared_where_one_mask_gives_all_lengths():
    _second("adds_the_mask", "aot_eager")
    assert counters["graph_deduplication"]["bodies"] == 1
    assert counters["graph_deduplication"]["calls"] == LAYERS - 1


class ReturnsOfItsLength(Layer):
    """It returns a tensor of the length that moves."""

    def forward(self, x, mask):
        return x + self.second(self.first(x).tanh()).sin(), (x @ self.kept.t()).sin().sum(0)


class FrameCompares(Model):
    """The frame finds out, of each layer's length, whether it is the mask's."""

    def __init__(self):
        super().__init__("attends")
        self.layers = nn.ModuleList(ReturnsOfItsLength("attends", k) for k in range(LAYERS))

    def forward(self, x, mask):
        signs = 0
        for layer in self.layers:
            x, sums = layer(x, mask)
            signs = signs * 10 + (1 if sums.size(0) == mask.size(0) else 2)
        return x + signs


@pytest.mark.parametrize("verify", [False, True])
def test_what_the_frame_finds_out_of_one_length_holds_for_no_other(verify):
    model = FrameCompares()
    program, counter = _compiled(model)
    with torch._dynamo.config.patch(verify_region_reuse=verify):
        for length in (6, 7):
            counters.clear()
            mask = model.hold(length)
            _same(program(X, mask), model(X, mask))
    assert counters["regions"]["verified" if verify else "reused"]
    model.layers[3].kept = torch.ones(9, 4)
    frames = counter.frame_count
    _same(program(X, mask), model(X, mask))
    assert counter.frame_count == frames + 1


class NamedLayer(Layer):
    """It keeps its tensor under another name, of which the name of the length's symbol is made."""

    def __init__(self, name, k):
        super().__init__("attends", k)
        self.name = name

    def forward(self, x, mask):
        kept = getattr(self, self.name)
        return x + self.second(((self.first(x).tanh() @ kept.t()).sin() + mask) @ kept)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("name", ["kept", "k", "cache", "past", "kv"])
def test_which_of_two_equal_symbols_is_left_is_no_difference(name, verify):
    model = Model("attends")
    model.layers = nn.ModuleList(NamedLayer(name, k) for k in range(LAYERS))
    program, _ = _compiled(model)
    with torch._dynamo.config.patch(verify_region_reuse=verify):
        for length in (6, 7):
            counters.clear()
            forget_outcomes()
            for k, layer in enumerate(model.layers):
                setattr(layer, name, torch.linspace(k, 1, length * 4).view(length, 4))
            mask = torch.ones(length)
            _same(program(X, mask), model(X, mask))
    assert counters["regions"]["verified" if verify else "reused"]
    assert RegionInlineReason.OWN_SIZES not in [outcome.reason for outcome in outcomes_of("NamedLayer")]
