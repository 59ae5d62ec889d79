"""Layers with hooks that collect: their ``forward`` is the region, and the hooks are traced."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters


LAYERS = 6
X = torch.linspace(-1, 1, 8).view(2, 4)


class Seen:
    pass


SEEN = Seen()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, scale=1.0):
        return x + self.second(self.first(x).tanh()) * scale


class Model(nn.Module):
    def __init__(self, *hooks, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        for layer in self.layers:
            for hook in hooks:
                if hook is before:
                    layer.register_forward_pre_hook(hook)
                else:
                    layer.register_forward_hook(hook, **options)

    def forward(self, x):
        SEEN.all, SEEN.number = [], 1
        for layer in self.layers:
            x = layer(x)
        return x, SEEN.all, SEEN.number


def collects(module, args, out):
    """As transformers collects hidden states: the first input, and what each layer returns."""
    if len(SEEN.all) == 0:
        SEEN.all.append(args[0])
    SEEN.all.append(out)


def changes(module, args, out):
    SEEN.number = SEEN.number + 1
    return out * SEEN.number


def before(module, args):
    SEEN.number = SEEN.number * 2
    return (args[0] + SEEN.number,)


def _run(program):
    x = X.clone().requires_grad_()
    out, seen, number = program(x)
    return out, seen, number, torch.autograd.grad(out.sum() + sum(each.sum() for each in seen), x)


def _check(model, backend="eager"):
    torch._dynamo.reset()
    counters.clear()
    program = torch.compile(model, backend=backend, fullgraph=True)
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        for _ in range(2):
            torch.testing.assert_close(_run(program), _run(model))
    assert counters["stats"]["unique_graphs"] == 1
    return program


HOOKS = {"collects": (collects,), "changes": (changes,), "before": (before,), "all": (before, changes, collects)}


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_forward_of_a_layer_whose_hooks_differ_is_reused(hooks, backend):
    _check(Model(*HOOKS[hooks]), backend)
    assert counters["regions"]["reused"] >= LAYERS - 3


@pytest.mark.parametrize("hooks", HOOKS)
def test_a_reuse_is_what_tracing_makes(hooks):
    with torch._dynamo.config.patch(verify_region_reuse=True):
        _check(Model(*HOOKS[hooks]))
    assert counters["regions"]["verified"]


def test_a_forward_of_an_instance_is_not_taken_for_that_of_the_class():
    model = Model(collects)
    plain = model.layers[LAYERS - 2].forward
    model.layers[LAYERS - 2].forward = lambda x: plain(x) * 2
    _check(model)
    assert counters["regions"]["reused"] == LAYERS - 3


def test_a_hook_that_is_changed_after_the_compile_is_seen():
    model = Model(collects)
    program = _check(model)
    model.layers[LAYERS - 1].register_forward_hook(changes)
    torch.testing.assert_close(_run(program), _run(model))


def test_a_forward_of_the_class_that_is_changed_after_the_compile_is_seen(monkeypatch):
    model = Model(collects)
    program = _check(model)
    monkeypatch.setattr(Layer, "forward", lambda self, x: self.first(x) - x)
    torch.testing.assert_close(_run(program), _run(model))


def test_a_hook_that_fails_leaves_nothing_for_the_next_frame():
    def fails(module, args):
        raise ValueError("no")

    model = Model(collects)
    model.layers[LAYERS - 1].register_forward_pre_hook(fails)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        for program in (torch.compile(model, backend="eager"), model):
            with pytest.raises(ValueError, match="no"):
                program(X)
    _check(Model(collects))
    assert counters["regions"]["reused"] == LAYERS - 2
