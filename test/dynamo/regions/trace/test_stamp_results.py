"""A stamped call's result is what the layer returned, whatever the frame has done to the traced call's result since."""

import functools

import pytest
import torch
import torch._dynamo
from testing.automatic_cases import X, compare
from torch import nn
from torch._dynamo.regions.trace import recipe
from torch._dynamo.regions.trace.verify import RegionReuseError
from torch._dynamo.utils import counters


LAYERS = 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.a(x).tanh()).sin()


CHANGES = {
    "transposed": lambda y, w: y.t_(),
    "detached": lambda y, w: y.detach_(),
    "of other strides": lambda y, w: y.as_strided_((8,), (1,)),
    "of another storage": lambda y, w: y.set_(torch.ones(3, 4)),
    "requires grad": lambda y, w: y.requires_grad_(),
    "is recorded by autograd": lambda y, w: y.mul_(w),
    "written": lambda y, w: y.add_(1),
}


class Changed(nn.Module):
    """``change``: what the frame does in place to results of the layers numbered ``which``."""

    def __init__(self, change, which, records):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.weight = nn.Parameter(torch.linspace(1, 2, 4))
        self._change, self.which, self.records = CHANGES[change], which, records

    def forward(self, x):
        results, seen = [], []
        for number, layer in enumerate(self.layers):
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.records):
                y = layer(x)
            seen.append((y.requires_grad, y.is_leaf, tuple(y.shape), y.stride()))
            after = y.reshape(-1)[:4].sin().exp().cos()
            if number in self.which:
                self._change(y, self.weight)
            results += [after, y.reshape(-1)[:4].cos().tanh().exp()]
            x = x * 2 + 1
        return results, seen


def _is_wrong_flat(change, records, training):
    """Eager refuses to detach a view, or to write to what the backward needs: the flat program need not."""
    return change in ("transposed", "of other strides", "of another storage", "written") and records and training


@pytest.mark.parametrize("which", [(0,), (1, 3)], ids=str)
@pytest.mark.parametrize("records", [True, False], ids=["recorded", "no_grad"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_result_that_the_frame_changes_in_place_is_one_layers(change, records, which):
    for training in (True, False):
        if not _is_wrong_flat(change, records, training):
            compare(lambda: Changed(change, which, records), X, training=training, backend="aot_eager")
    assert counters["regions"]["reused"]


def test_verification_sees_the_metadata_of_results(monkeypatch):
    calls = []
    examples_of = recipe.examples_of

    def transposed_but_the_last(*args):
        calls.append(args)
        found = examples_of(*args)
        return [value.t() for value in found] if len(calls) < 3 else found

    monkeypatch.setattr(recipe, "examples_of", transposed_but_the_last)
    run = torch.compiler.nested_compile_region(lambda x: x.sin().cos() + 1)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(verify_region_reuse=True), pytest.raises(RegionReuseError, match="metadata"):
        torch.compile(lambda x: run(run(run(x))), backend="eager", fullgraph=True)(X)


class Views(nn.Module):
    """Layers that return a view of what they computed; the frame writes a parameter into it."""

    def __init__(self, in_layer, in_frame, rows):
        super().__init__()
        self.layers, self.rows = nn.ModuleList(Layer() for _ in range(LAYERS)), rows
        self.weight = nn.Parameter(torch.linspace(1, 2, 4))
        self.in_layer, self.in_frame = in_layer, in_frame
        for layer in self.layers:
            layer.forward = functools.partial(self._view, layer)

    def _view(self, layer, x):
        y = Layer.forward(layer, x)
        with torch.set_grad_enabled(self.in_layer):
            return y, (y.detach() * 2)[self.rows]

    def forward(self, x):
        for layer in self.layers:
            x, view = layer(x)
            with torch.set_grad_enabled(self.in_frame):
                view.mul_(self.weight)
            x = x + view.sum()
        return x


@pytest.mark.parametrize("rows", [slice(1), slice(1, 2)], ids=["first", "second"])
@pytest.mark.parametrize("in_frame", [True, False], ids=["written with grad", "without"])
@pytest.mark.parametrize("in_layer", [True, False], ids=["made with grad", "without"])
def test_autograd_knows_how_a_returned_view_was_made(in_layer, in_frame, rows):
    """A stamped call's view was made while autograd did not record. Then autograd refuses some writes to it."""

    def outcome(flag):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Views(in_layer, in_frame, rows)
        with torch._dynamo.config.patch(use_graph_deduplication=flag):
            try:
                result = torch.compile(model, backend="eager")(X)
            except Exception as error:
                return type(error).__name__
        grads = torch.autograd.grad(result.sum(), model.parameters(), allow_unused=True)
        return [result.tolist(), *(None if g is None else g.tolist() for g in grads)]

    assert outcome(True) == outcome(False)
