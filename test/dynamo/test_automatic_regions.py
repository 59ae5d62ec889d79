"""Under the flag, calls of repeated modules are regions: what becomes of them, and that nothing else changes."""

import collections
import dataclasses
import functools
import random

import pytest
import torch
import torch._dynamo
from automatic_cases import Block, Stack, check, compare, names, outcomes_of
from torch._dynamo.region_outcomes import Outcome, RegionInlineReason, ReuseMissReason, outcomes
from torch._dynamo.utils import counters


nn = torch.nn
X = torch.linspace(-1, 1, 8).view(2, 4)


def blocks(n=4):
    return [Block(4) for _ in range(n)]


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
    # The first call has no twin yet: nothing says that there will be a second.
    assert names("Block") == ["TRACED", "REUSED", "REUSED", "REUSED"]


class Odd(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.k = k
        self.act = nn.GELU() if k % 2 else nn.ReLU()

    def forward(self, x):
        return x + self.act(self.norm(self.linear(x)))


def test_blocks_that_differ_in_one_part_make_two_groups():
    check(lambda: Stack([Odd(k) for k in range(6)]), X)
    assert names("Odd") == ["TRACED", "TRACED", "REUSED", "REUSED", "REUSED", "REUSED"]


class Switched(nn.Module):
    def __init__(self, on):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.on = on

    def forward(self, x):
        h = self.norm(self.linear(x))
        return h.sin() + x if self.on else h.cos() - x


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
    # Each has a number of its own in an operator; after some tries nobody asks any more.
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
    "own forward": lambda m: setattr(m, "forward", functools.partial(_twice, m)),
    "frozen": lambda m: m.linear.requires_grad_(False),
    "eval": lambda m: m.eval(),
    "no bias": lambda m: setattr(m.linear, "bias", None),
    "tensor hook": lambda m: m.linear.weight.register_hook(lambda g: g * 3),
}


def _twice(module, x):
    return type(module).forward(module, x) * 2


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


class Direct(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(blocks())

    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        return x


def test_forward_called_directly():
    check(Direct, X)


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    extra: object = None


class Returns(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.__dict__["_make"] = make

    def forward(self, x):
        return self._make(self.norm(self.linear(x)).relu())


def _dict(h):
    return {"hidden": h, "twice": h * 2}


def _tuple(h):
    return h, None


def _list(h):
    return [h, 1, "a"]


def _output(h):
    return Output(h, (h.cos(), None))


class Unpacks(nn.Module):
    def __init__(self, make, get):
        super().__init__()
        self.layers = nn.ModuleList(Returns(make) for _ in range(4))
        self.__dict__["_get"] = get

    def forward(self, x):
        results = []
        for layer in self.layers:
            result = layer(x)
            x = self._get(result)
            results.append(result)
        return x, results[-1], len(results)


@pytest.mark.parametrize(
    ("make", "get"),
    [
        (_dict, lambda r: r["hidden"]),
        (_tuple, lambda r: r[0]),
        (_list, lambda r: r[0]),
        (_output, lambda r: r.hidden),
    ],
    ids=["dict", "tuple", "list", "dataclass"],
)
def test_what_blocks_return(make, get):
    check(lambda: Unpacks(make, get), X)


class Writes(nn.Module):
    """Returns nothing: stores what it computes, and counts."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.last = None
        self.calls = 0

    def forward(self, x, store):
        self.last = self.norm(self.linear(x)).relu()
        self.calls += 1
        store.append(self.last)


class Stores(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Writes() for _ in range(4))

    def forward(self, x):
        store = []
        for layer in self.layers:
            layer(x, store)
            x = x + layer.last
        return x, store


def test_side_effects_of_blocks():
    check(Stores, X, fullgraph=False)


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return x + self.norm(self.linear(x)).relu()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("train", [True, False])
def test_running_statistics(backend, train):
    check(lambda: Stack([Norms() for _ in range(4)]).train(train), X, backend=backend)


class Drops(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 16), nn.Linear(16, 4), nn.LayerNorm(4)

    def forward(self, x):
        h = nn.functional.dropout(self.first(self.norm(x)).sin().cos().tanh(), 0.3, self.training)
        return x + self.second(h).sin().cos().tanh()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_dropout_draws_what_it_draws_flat(backend):
    check(lambda: Stack([Drops() for _ in range(4)]), X, backend=backend)
    assert names("Drops") == ["TRACED", "REUSED", "REUSED", "REUSED"]


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.input, self.hidden = nn.Linear(4, 12), nn.Linear(4, 12)

    def forward(self, x, h):
        a, b, c = (self.input(x) + self.hidden(h)).chunk(3, -1)
        return torch.sigmoid(a) * h + torch.tanh(b) * torch.sigmoid(c)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell()

    def forward(self, x):
        h = torch.zeros(2, 4)
        for _ in range(10):
            h = self.cell(x, h)
        return h


def test_an_unrolled_recurrent_cell():
    check(Recurrent, X)
    assert sum(o.outcome is Outcome.REUSED for o in outcomes_of("Cell")) >= 7


class Raises(nn.Module):
    def __init__(self, limit):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.limit = limit

    def forward(self, x):
        h = self.norm(self.linear(x))
        if self.limit > 2:
            raise ValueError("too deep")
        return h


class Catches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Raises(k) for k in range(6))

    def forward(self, x):
        caught = 0
        for layer in self.layers:
            try:
                x = layer(x)
            except ValueError:
                caught += 1
        return x, caught


def test_blocks_that_raise():
    check(Catches, X)


class Breaks(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.k = k

    def forward(self, x):
        h = self.norm(self.linear(x))
        if self.k == 2:
            torch._dynamo.graph_break()
        return h.relu() + x


def test_a_graph_break_in_one_block():
    check(lambda: Stack([Breaks(k) for k in range(6)]), X, fullgraph=False)


def test_a_graph_break_in_every_block():
    check(lambda: Stack([Breaks(2) for k in range(4)]), X, fullgraph=False)


def test_a_graph_break_between_blocks():
    class Between(Stack):
        def forward(self, x):
            for layer in self.layers[:4]:
                x = layer(x)
            torch._dynamo.graph_break()
            for layer in self.layers[4:]:
                x = layer(x)
            return x

    check(lambda: Between(blocks(8)), X, fullgraph=False)
    assert sum(o.outcome is Outcome.REUSED for o in outcomes_of("Block")) >= 6


CHANGES = {
    "attribute": lambda m: setattr(m.layers[2], "scale", 3.0),
    "training flag": lambda m: m.layers[2].eval(),
    "hook": lambda m: m.layers[2].register_forward_hook(lambda m, i, o: o + 1),
    "submodule": lambda m: setattr(m.layers[2], "norm", nn.Identity()),
    "parameter": lambda m: setattr(m.layers[2].linear, "weight", nn.Parameter(torch.ones(4, 4))),
    "no bias": lambda m: setattr(m.layers[2].linear, "bias", None),
    "swapped": lambda m: m.layers.insert(0, m.layers.pop(2)),
    "one more": lambda m: m.layers.append(Block(4)),
    "forward": lambda m: setattr(m.layers[2], "forward", functools.partial(_twice, m.layers[2])),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_between_calls_is_seen_as_flat_sees_it(what):
    seen = []
    for flag in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, frames = Stack(blocks()), torch._dynamo.testing.CompileCounter()
        with torch._dynamo.config.patch(use_graph_deduplication=flag):
            compiled = torch.compile(model, backend=frames)
            results = [compiled(X)]
            torch.manual_seed(1)
            CHANGES[what](model)
            results += [compiled(X), compiled(X)]
        seen.append((results, frames.frame_count))
        # Dynamo does not look at hooks that come later, unless it is told to.
        if what != "hook":
            torch.testing.assert_close(results[-1], model(X))
    torch.testing.assert_close(seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]


def test_blocks_that_are_called_in_a_block():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(blocks(4))

        def forward(self, x):
            out = 0
            for expert in self.experts:
                out = out + expert(x)
            return out

    check(lambda: Stack([Outer() for _ in range(3)]), X)
    assert names("Block") == ["TRACED", "REUSED", "REUSED", "REUSED"]
    assert names("test_blocks_that_are_called_in_a_block.<locals>.Outer") == ["TRACED", "REUSED", "REUSED"]


class Unrolled(nn.Module):
    """Repeats itself inside, without modules that say so."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        h = self.norm(self.linear(x))
        for _ in range(6):
            h = (h.sin() * x).cos() + (h * 2).tanh().relu()
        return h


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_repeats_in_a_body_are_found_too(backend):
    check(lambda: Stack([Unrolled() for _ in range(4)]), X, backend=backend)
    assert names("Unrolled") == ["TRACED", "REUSED", "REUSED", "REUSED"]
    assert counters["graph_deduplication"]["bodies_in_bodies"] > 0


class Beside(nn.Module):
    """Calls its blocks, and computes the same without them too."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(blocks(2))

    def forward(self, x, weights):
        for layer in self.layers:
            x = layer(x)
        for weight, bias, scale, shift in weights:
            h = nn.functional.layer_norm(nn.functional.linear(x, weight, bias), (4,), scale, shift, 1e-5)
            x = x + h.relu() * 2.0
        return x


def test_equal_regions_of_modules_and_of_the_search_share_a_body():
    graphs = []

    def backend(gm, _):
        graphs.append(gm)
        return gm.forward

    model = Beside().requires_grad_(False)
    weights = [[torch.randn(4, 4), torch.randn(4), torch.randn(4), torch.randn(4)] for _ in range(3)]
    with torch._dynamo.config.patch(use_graph_deduplication=True, graph_deduplication_lint=True):
        torch.testing.assert_close(torch.compile(model, backend=backend)(X, weights), model(X, weights))
    called = [n.args[1] for n in graphs[0].graph.nodes if n.target is torch.ops.higher_order.invoke_subgraph]
    assert len(called) == 5
    assert len(set(called)) == 1


def test_with_the_knob_off_there_are_no_automatic_regions():
    with torch._dynamo.config.patch(automatic_nested_compile_regions=False):
        check(lambda: Stack(blocks()), X, regions=False)
    assert outcomes() == []


def test_without_the_flag_there_are_no_automatic_regions():
    torch.compile(Stack(blocks()), backend="eager")(X)
    assert outcomes() == []


def test_a_model_of_classes_that_do_not_repeat():
    kinds = [type(f"Kind{k}", (Block,), {}) for k in range(200)]
    model = Stack([kind(4) for kind in kinds])
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(X), model(X))
    assert outcomes() == []


def test_reports_tell_automatic_calls():
    import torch_regions

    check(lambda: Stack(blocks()), X)
    assert counters["regions"]["automatic: reused"] == 3
    assert counters["regions"]["automatic: traced"] == 1
    assert "automatic" in torch_regions.report()


@pytest.mark.parametrize("seed", range(8))
def test_random_stacks(seed):
    source = random.Random(seed)

    def build():
        chance = random.Random(seed)
        kinds = [
            Block,
            lambda d: Odd(chance.randrange(2)),
            lambda d: Switched(chance.random() < 0.5),
            lambda d: Drops(),
        ]
        picked = chance.sample(kinds, 2)
        return Stack([chance.choice(picked)(4) for _ in range(chance.randrange(2, 9))])

    check(build, X, backend=source.choice(["eager", "aot_eager"]))


def test_final_reasons_are_reasons_of_a_miss():
    from torch._dynamo import region_candidates

    assert set(ReuseMissReason) > region_candidates._FINAL
