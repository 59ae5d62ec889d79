"""Layers with forward hooks: reused by the hooks' code, with the guards that tracing makes; a change of any is seen."""

import functools

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.regions.trace.module_hooks import is_dict_of_hooks, state_of_hooks, with_number
from torch._dynamo.utils import counters


LAYERS = 5
X = torch.linspace(-1, 1, 8).view(2, 4)
FACTOR = 2.0


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return x + self.second(self.first(x).tanh()).sin()


class Model(nn.Module):
    def __init__(self, hooked):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        for k, layer in enumerate(self.layers):
            hooked(layer, k)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _scaling(by):
    return lambda module, args, out: out * by


def forward_hook(layer, k):
    layer.first.register_forward_hook(_scaling(0.5))


def hooks_of_both_kinds(layer, k):
    layer.first.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    layer.second.register_forward_hook(_scaling(3.0))
    layer.second.register_forward_hook(lambda module, args, out: out - args[0])


def cells_with_tensors(layer, k):
    layer.first.register_forward_hook(_scaling(torch.full((4,), k + 1.0)))


def cells_that_differ(layer, k):
    layer.first.register_forward_hook(_scaling(float(k)))


def defaults(layer, k):
    layer.first.register_forward_hook(lambda module, args, out, by=k % 2 + 1: out * by)


def a_global(layer, k):
    layer.first.register_forward_hook(lambda module, args, out: out * FACTOR)


def partials(layer, k):
    layer.first.register_forward_hook(functools.partial(lambda by, module, args, out: out * by, 2.0))


def one_for_all(layer, k, hook=_scaling(2.0)):
    layer.first.register_forward_hook(hook)


def with_keywords(layer, k):
    layer.first.register_forward_hook(lambda module, args, kwargs, out: out * 2, with_kwargs=True)


def always_called(layer, k):
    layer.first.register_forward_hook(_scaling(2.0), always_call=True)


def on_one_layer(layer, k):
    if k == 3:
        layer.first.register_forward_hook(_scaling(2.0))


PROGRAMS = (
    *(forward_hook, hooks_of_both_kinds, cells_with_tensors, cells_that_differ, defaults, a_global, partials),
    *(one_for_all, with_keywords, always_called, on_one_layer),
)
# Those whose layers are calls of one body, but for the first.
REUSED = (forward_hook, hooks_of_both_kinds, cells_with_tensors, a_global, one_for_all)


def _compiled(model, flag, **config):
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(use_graph_deduplication=flag, **config):
        compiled = torch.compile(model, backend="eager")
        return compiled, compiled(X)


@pytest.mark.parametrize("hooked", PROGRAMS)
def test_result_is_that_of_the_program(hooked):
    model = Model(hooked)
    _, result = _compiled(model, True)
    torch.testing.assert_close(result, model(X), rtol=0, atol=0)
    assert counters["regions"].get("reused", 0) >= (LAYERS - 2 if hooked in REUSED else 0)


@pytest.mark.parametrize("hooked", PROGRAMS)
def test_reuse_leaves_what_tracing_leaves(hooked):
    _compiled(Model(hooked), True, verify_region_reuse=True)


def _another(model):
    (number,) = model.layers[3].first._forward_hooks
    model.layers[3].first._forward_hooks[number] = lambda module, args, out: out.cos()


def _of_the_same_code(model):
    (number,) = model.layers[3].first._forward_hooks
    model.layers[3].first._forward_hooks[number] = _scaling(7.0)


def _cell(model):
    (hook,) = model.layers[3].first._forward_hooks.values()
    hook.__closure__[0].cell_contents = 11.0


def _removed(model):
    model.layers[3].first._forward_hooks.clear()


def _one_more(model):
    model.layers[3].first.register_forward_hook(_scaling(5.0))


def _one_more_before(model):
    model.layers[3].first.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def _always(model):
    """The hook is told to run always, which tracing looks up by the hook's number."""
    (number,) = model.layers[3].first._forward_hooks
    model.layers[3].first._forward_hooks_always_called[number] = True


def _always_in_process(model):
    (number,) = model.layers[3].first._forward_hooks
    nn.modules.module._global_forward_hooks_always_called[number] = True


CHANGES = (_another, _of_the_same_code, _cell, _removed, _one_more, _one_more_before, _always, _always_in_process)


@pytest.mark.parametrize("change", CHANGES)
def test_change_after_the_compile_is_seen_as_in_the_flat_program(change):
    seen = {}
    for flag in (False, True):
        model = Model(forward_hook)
        compiled, _ = _compiled(model, flag)
        assert not flag or counters["regions"]["reused"] == LAYERS - 2
        try:
            change(model)
            result = compiled(X)
            if change is not _one_more_before:  # Dynamo does not guard by default that there is no hook
                torch.testing.assert_close(result, model(X), rtol=0, atol=0)
        finally:
            nn.modules.module._global_forward_hooks_always_called.clear()
        seen[flag] = counters["stats"]["unique_graphs"], result
    assert seen[True][0] == seen[False][0]
    torch.testing.assert_close(seen[True][1], seen[False][1], rtol=0, atol=0)


class Watched:
    factor = 2.0

    def __iter__(self):
        raise AssertionError("the program does not iterate over it")


class Holder:
    def __init__(self):
        self._forward_hooks = Watched()


def test_attribute_of_an_object_that_is_no_module_may_have_the_name_of_a_dict_of_hooks():
    class Held(Layer):
        def __init__(self):
            super().__init__()
            self.held = Holder()

        def forward(self, x):
            return super().forward(x) * self.held._forward_hooks.factor

    model = Model(lambda layer, k: None)
    model.layers = nn.ModuleList(Held() for _ in range(LAYERS))
    _, result = _compiled(model, True)
    torch.testing.assert_close(result, model(X), rtol=0, atol=0)
    assert counters["regions"]["reused"] == LAYERS - 2


def test_guard_on_the_number_of_a_hook_is_made_with_the_other_hooks_number():
    make = functools.partial(torch._dynamo.guards.GuardBuilder.DICT_CONTAINS, key=13, invert=True)
    local = torch._dynamo.source.LocalSource("module")
    beside = torch._dynamo.source.AttrSource(local, "_forward_hooks_always_called")
    assert with_number(beside, make, {13: 27}).keywords == {"key": 27, "invert": True}
    assert with_number(beside, make, {12: 27}) is make
    # A dict of the program's may have the same number as a key.
    assert with_number(torch._dynamo.source.AttrSource(local, "numbers"), make, {13: 27}) is make


def test_dicts_of_hooks():
    module = nn.Linear(4, 4)
    assert not is_dict_of_hooks(module, "_forward_hooks")  # empty: all empty ones are alike
    first = module.register_forward_hook(_scaling(2.0))
    assert is_dict_of_hooks(module, "_forward_hooks") and not is_dict_of_hooks(module, "weight")
    assert not is_dict_of_hooks(object(), "_forward_hooks")
    state = state_of_hooks(module._forward_hooks)
    first.remove()
    module.register_forward_hook(_scaling(3.0))
    assert state_of_hooks(module._forward_hooks) == state  # by its code; its cell has a guard of its own
    module.register_forward_hook(_scaling(3.0), always_call=True)
    assert not is_dict_of_hooks(module, "_forward_hooks")
