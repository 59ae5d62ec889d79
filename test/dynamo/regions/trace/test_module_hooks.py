"""Layers with forward hooks: reused by the hooks' code, with the guards that tracing makes; a change of any is seen."""

import collections
import copy
import functools

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.regions.trace.module_hooks import is_dict_of_hooks, state_of_hooks, with_numbers
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


# What a layer, or a hook of its, makes of the keys of a dict of hooks. Each key is the number of one hook.
READS = {
    "contains": lambda hooks: 2.0 if 3 in hooks else 1.0,
    "get": lambda hooks: 2.0 if hooks.get(3) is None else 1.0,
    "list": lambda hooks: list(hooks)[0] + 1.0,
    "keys": lambda hooks: max(hooks.keys()) + 1.0,
    "items": lambda hooks: 1.0 + [number for number, _ in hooks.items()][0],
    "sorted": lambda hooks: sorted(hooks)[0] + 1.0,
    "any": lambda hooks: 2.0 if any(hooks) else 1.0,
}


@pytest.mark.parametrize("by_hook", [False, True], ids=["layer", "hook"])
@pytest.mark.parametrize("read", READS)
def test_numbers_of_hooks_that_the_program_reads_are_not_those_of_another_layer(read, by_hook, monkeypatch):
    """Dynamo makes no guard on them, so a reuse took the traced call's."""
    monkeypatch.setattr(torch.utils.hooks.RemovableHandle, "next_id", 0)

    class Reads(Layer):
        def forward(self, x):
            found = super().forward(x)
            return found if by_hook else found * READS[read](self.first._forward_hooks)

    def hook(module, args, out):
        return out * READS[read](module._forward_hooks) if by_hook else out * 2

    model = Model(lambda layer, k: None)
    model.layers = nn.ModuleList(Reads() for _ in range(LAYERS))
    for layer in model.layers:
        layer.first.register_forward_hook(hook)
    _, result = _compiled(model, True)
    torch.testing.assert_close(result, model(X), rtol=0, atol=0)
    _compiled(model, True, verify_region_reuse=True)


class Key:
    """A key of the program's, under which it has put a hook."""

    hashed = 0

    def __hash__(self):
        Key.hashed += 1
        return 5


@pytest.mark.parametrize("make", [lambda k: "skip" if k == 3 else "no", lambda k: Key()], ids=["names", "objects"])
def test_hooks_under_keys_of_the_programs(make):
    hashed = []
    for flag in (False, True):

        class Asks(Layer):
            def forward(self, x):
                return super().forward(x) * (3 if "skip" in self.first._forward_hooks else 1)

        model = Model(lambda layer, k: None)
        model.layers = nn.ModuleList(Asks() for _ in range(LAYERS))
        for k, layer in enumerate(model.layers):
            layer.first._forward_hooks[make(k)] = _scaling(2.0)
        Key.hashed = 0
        _, result = _compiled(model, flag)
        hashed.append(Key.hashed)
        torch.testing.assert_close(result, model(X), rtol=0, atol=0)
    assert hashed[1] <= hashed[0]


def _with_keywords_in_process(model):
    (number,) = model.layers[3].first._forward_hooks
    nn.modules.module._global_forward_hooks_with_kwargs[number] = True


def _any_arguments(module, *args):
    return args[-1] * (1.0 + len(args))


def copies_in_the_first_layers(layer, k):
    """Copies have hooks of one number."""
    layer.first.register_forward_hook(_any_arguments)
    if k < 2:
        layer.second = copy.deepcopy(layer.first)
    else:
        layer.second.register_forward_hook(_any_arguments)


def of_two_kinds_with_one_number(layer, k):
    layer.first.register_forward_hook(_any_arguments)
    layer.first.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    if k < 2:
        (number,) = layer.first._forward_hooks
        ((_, hook),) = layer.first._forward_pre_hooks.items()
        layer.first._forward_pre_hooks.clear()
        layer.first._forward_pre_hooks[number] = hook


def one(layer, k):
    layer.first.register_forward_hook(_any_arguments)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("hooked", [one, copies_in_the_first_layers, of_two_kinds_with_one_number])
def test_what_the_process_says_of_the_number_of_a_layers_hook(hooked, when):
    """It was not compared before a guard said that it holds, and copies' hooks had one guard for two numbers."""
    seen = {}
    for flag in (False, True):
        model = Model(hooked)
        try:
            if when == "before":
                _with_keywords_in_process(model)
            compiled, _ = _compiled(model, flag)
            if when == "after":
                _with_keywords_in_process(model)
            result = compiled(X)
            torch.testing.assert_close(result, model(X), rtol=0, atol=0)
        finally:
            nn.modules.module._global_forward_hooks_with_kwargs.clear()
        seen[flag] = counters["stats"]["unique_graphs"]
    assert seen[True] == seen[False]
    assert counters["regions"]["reused"]


class Counting(collections.OrderedDict):
    ran = 0

    def __bool__(self):
        Counting.ran += 1
        return len(self) > 0

    def values(self):
        Counting.ran += 1
        return super().values()


@pytest.mark.parametrize(
    "name",
    [
        *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks"),
        *("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_buffers", "_parameters", "_modules"),
    ],
)
def test_methods_of_a_modules_dicts_do_not_run(name):
    ran = []
    for flag in (False, True):
        model = Model(forward_hook)
        for layer in model.layers:
            for module in (layer, layer.first):
                module.__dict__[name] = Counting(module.__dict__[name])
        Counting.ran = 0
        _compiled(model, flag)
        ran.append(Counting.ran)
    assert ran[1] <= ran[0]


def test_functions_of_one_code_of_which_dynamo_is_told_different_things():
    """Dynamo puts one of them into the graph as it is, and guards nothing of what it reads."""
    graphs = []
    for flag in (False, True):
        model = Model(lambda layer, k: None)
        for layer in model.layers:
            layer.first.act = _scaling(2.0)
            layer.first.forward = lambda x, own=layer: own.first.act(None, None, own.second(x))
        torch._dynamo.allow_in_graph(model.layers[3].first.act)
        compiled, _ = _compiled(model, flag)
        model.layers[3].first.act.__closure__[0].cell_contents = 7.0
        torch.testing.assert_close(compiled(X), model(X), rtol=0, atol=0)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1]


def test_guard_on_the_number_of_a_hook_is_made_with_the_other_hooks_number():
    make = functools.partial(torch._dynamo.guards.GuardBuilder.DICT_CONTAINS, key=13, invert=True)
    local = torch._dynamo.source.LocalSource("module")
    beside = torch._dynamo.source.AttrSource(local, "_forward_hooks_always_called")
    found = with_numbers(beside, make, {13: [27, 28]})
    assert [made.keywords for _, made in found] == [{"key": 27, "invert": True}, {"key": 28, "invert": True}]
    assert with_numbers(beside, make, {12: [27]}) == [(beside, make)]
    # A dict of the program's may have the same number as a key.
    numbers = torch._dynamo.source.AttrSource(local, "numbers")
    assert with_numbers(numbers, make, {13: [27]}) == [(numbers, make)]


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
