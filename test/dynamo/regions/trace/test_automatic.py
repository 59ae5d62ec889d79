"""Under the flag, calls of repeated modules are regions: which calls, and which are left alone."""

import collections
import functools

import pytest
import torch
import torch._dynamo
from testing.automatic_cases import Block, Odd, Stack, Switched, X, blocks, check, compare, names, outcomes_of, twice
from torch._dynamo.regions.outcomes import Outcome, RegionInlineReason, outcomes


nn = torch.nn


class Dictionary(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({str(k): block for k, block in enumerate(blocks())})

    def forward(self, x):
        for part in self.parts.values():
            x = part(x)
        return x


class Plain(nn.Module):
    """Holds its blocks where torch does not look."""

    def __init__(self, parts):
        super().__init__()
        self.__dict__["parts"] = parts

    def requires_grad_(self, on=True):
        for part in self.parts.values() if isinstance(self.parts, dict) else self.parts:
            part.requires_grad_(on)
        return self

    def forward(self, x):
        for part in self.parts.values() if isinstance(self.parts, dict) else self.parts:
            x = part(x)
        return x


class Attributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = blocks()

    def forward(self, x):
        return self.d(self.c(self.b(self.a(x))))


CONTAINERS = {
    "ModuleList": lambda: Stack(blocks()),
    "Sequential": lambda: nn.Sequential(*blocks()),
    "ModuleDict": Dictionary,
    "list": lambda: Plain(blocks()),
    "tuple": lambda: Plain(tuple(blocks())),
    "dict": lambda: Plain(dict(enumerate(blocks()))),
    "attributes": Attributes,
}


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_repeated_blocks_are_traced_once(name, backend):
    check(CONTAINERS[name], X, backend=backend)
    assert names("Block") == ["TRACED", "REUSED", "REUSED", "REUSED"]
    assert all(o.automatic for o in outcomes())


def test_a_function_that_calls_global_blocks():
    parts = [block.requires_grad_(False) for block in blocks()]

    def f(x):
        for part in parts:
            x = part(x)
        return x

    compare(lambda: f, X, training=False)
    assert names("Block") == ["TRACED", "REUSED", "REUSED", "REUSED"]


class Tied(nn.Module):
    """One block, called again and again, as in ALBERT."""

    def __init__(self):
        super().__init__()
        self.block = Block(4)

    def forward(self, x):
        for _ in range(5):
            x = self.block(x)
        return x


def test_one_block_called_in_a_loop():
    check(Tied, X)
    # No other block has its structure yet: nothing says that there will be a second.
    assert names("Block") == ["TRACED", "REUSED", "REUSED", "REUSED"]


def test_blocks_that_differ_in_one_part_make_two_groups():
    check(lambda: Stack([Odd(k) for k in range(6)]), X)
    assert names("Odd") == ["TRACED", "TRACED", "REUSED", "REUSED", "REUSED", "REUSED"]


def test_an_attribute_that_is_branched_on_is_looked_at():
    check(lambda: Stack([Switched(k in (1, 3)) for k in range(6)]), X)
    assert names("Switched") == ["TRACED", "TRACED", "REUSED", "REUSED", "REUSED", "REUSED"]


def test_the_first_call_that_came_out_alone_leaves_no_body():
    graphs = []

    def backend(gm, _):
        graphs.append(gm)
        return gm.forward

    model = Stack([Switched(k == 0) for k in range(4)])
    with torch._dynamo.config.patch(use_graph_deduplication=True, inline_single_use_invoke_subgraph=False):
        torch.compile(model, backend=backend)(X)
    called = collections.Counter(
        n.args[1] for n in graphs[0].graph.nodes if n.target is torch.ops.higher_order.invoke_subgraph
    )
    assert list(called.values()) == [3]
    assert [o.reason for o in outcomes_of("Switched")].count(RegionInlineReason.NOT_REPEATED) == 1


class Numbered(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.layer_idx = k
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x, cache):
        h = self.norm(self.linear(x)) + cache[self.layer_idx]
        return h.relu()


class WithCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Numbered(k) for k in range(4))

    def forward(self, x, cache):
        for layer in self.layers:
            x = layer(x, cache)
        return x


def test_a_layer_number_that_is_only_an_index():
    cache = [torch.full((4,), float(k)) for k in range(4)]
    check(WithCache, X, cache)
    assert names("Numbered") == ["TRACED", "REUSED", "REUSED", "REUSED"]


class Scaled(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.linear(x)) * self.k


def test_a_shape_that_disappoints_is_left_alone():
    check(lambda: Stack([Scaled(k) for k in range(12)]), X)
    # Each has a number of its own in an operator; after some tries the policy asks no more.
    assert 0 < len(outcomes_of("Scaled")) <= 4
    assert {o.outcome for o in outcomes_of("Scaled")} == {Outcome.INLINED}


HOOKS = {
    "forward": lambda m: m.register_forward_hook(lambda m, i, o: o * 2),
    "forward_kwargs": lambda m: m.register_forward_hook(lambda m, a, k, o: o + 1, with_kwargs=True),
    "forward_pre": lambda m: m.register_forward_pre_hook(lambda m, i: (i[0] + 1,)),
    "forward_pre_kwargs": lambda m: m.register_forward_pre_hook(lambda m, a, k: ((a[0] * 3,), k), with_kwargs=True),
    "full_backward": lambda m: m.register_full_backward_hook(lambda m, i, o: (i[0] * 2,)),
    "full_backward_pre": lambda m: m.register_full_backward_pre_hook(lambda m, o: (o[0] * 2,)),
    "parametrization": lambda m: nn.utils.parametrizations.weight_norm(m.linear),
    "old weight_norm": lambda m: nn.utils.weight_norm(m.linear),
    "own forward": lambda m: setattr(m, "forward", functools.partial(twice, m)),
    "frozen": lambda m: m.linear.requires_grad_(False),
    "eval": lambda m: m.eval(),
    "no bias": lambda m: setattr(m.linear, "bias", None),
    "tensor hook": lambda m: m.linear.weight.register_hook(lambda g: g * 3),
}


@pytest.mark.parametrize("what", HOOKS)
@pytest.mark.parametrize("place", [0, 2])
def test_one_layer_that_is_treated_in_another_way(what, place):
    def build():
        model = Stack(blocks(5))
        HOOKS[what](model.layers[place])
        return model

    # Dynamo breaks the graph at hooks of the backward.
    breaks = what in ("full_backward", "full_backward_pre")
    check(build, X, fullgraph=not breaks)
    assert breaks or sum(o.outcome is Outcome.REUSED for o in outcomes_of("Block")) >= 2


@pytest.mark.parametrize("inner", [False, True])
def test_a_hook_on_every_layer(inner):
    seen = []

    def build():
        model = Stack(blocks())
        for layer in model.layers:
            (layer.linear if inner else layer).register_forward_hook(lambda m, i, o: o.tanh())
        return model

    check(build, X)
    assert seen == []


def test_a_global_hook():
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 2 if isinstance(m, Block) else None)
    try:
        check(lambda: Stack(blocks()), X)
    finally:
        handle.remove()


def test_a_hook_that_collects_activations():
    def build():
        model = Stack(blocks())
        model.seen = []
        for layer in model.layers:
            layer.register_forward_hook(lambda m, i, o: model.seen.append(o.detach()))
        return model

    check(build, X, backend="eager", fullgraph=False)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(blocks())

    def forward(self, x):
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return x


def test_checkpointed_layers_stay_as_they_are():
    check(Checkpointed, X)
    assert outcomes_of("Block") == []


def test_layers_in_a_checkpoint_wrapper():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    check(lambda: Stack([checkpoint_wrapper(b) for b in blocks()]), X)
    assert outcomes_of("CheckpointWrapper") == []


class Inside(nn.Module):
    """Checkpoints a part of itself, as the layers of transformers do."""

    def __init__(self):
        super().__init__()
        self.block = Block(4)
        self.norm = nn.LayerNorm(4)

    def __call__(self, *args, **kwargs):
        run = functools.partial(super().__call__, **kwargs)
        return torch.utils.checkpoint.checkpoint(run, *args, use_reentrant=False) if self.training else run(*args)

    def forward(self, x):
        return self.norm(self.block(x)) + x


@pytest.mark.parametrize("train", [True, False])
def test_a_class_with_a_call_of_its_own(train):
    check(lambda: Stack([Inside() for _ in range(4)]).train(train), X)


@pytest.mark.parametrize("way", ["compile the layer", "module.compile"])
def test_compiled_layers(way):
    def build():
        model = Stack(blocks())
        for k, layer in enumerate(model.layers):
            if way == "module.compile":
                layer.compile(backend="eager")
            else:
                model.layers[k] = torch.compile(layer, backend="eager")
        return model

    check(build, X)
    assert outcomes_of("OptimizedModule") == []


def test_layers_that_the_user_has_marked_are_not_marked_again():
    def build():
        model = Stack(blocks())
        for layer in model.layers:
            layer.forward = torch.compiler.nested_compile_region(layer.forward)
        return model

    check(build, X)
    assert not any(o.automatic for o in outcomes())
    assert len(outcomes()) == 4
