"""Operators with bodies are operators of a region: which are, which share a body, and that nothing else changes."""

import functools

import pytest
import torch
import torch._dynamo
from testing.automatic_cases import Block, Stack, X, check, compare, names, stack_of
from testing.cases import some
from torch._dynamo.regions.outcomes import outcomes
from torch._dynamo.regions.outline.legality import IllegalReason
from torch._dynamo.utils import counters
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


PLAIN = functools.partial(checkpoint, use_reentrant=False)
LINEAR = [torch.ops.aten.addmm.default, torch.ops.aten.mm.default]


def saves_linear(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in LINEAR else CheckpointPolicy.PREFER_RECOMPUTE


def linear_contexts():
    return create_selective_checkpoint_contexts(saves_linear)


def selective(what, allow=False):
    contexts = functools.partial(create_selective_checkpoint_contexts, what, allow_cache_entry_mutation=allow)
    return functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)


class Checkpointed(Block):
    """A block that checkpoints itself, as those of transformers do."""

    how = staticmethod(PLAIN)

    def forward(self, x):
        return self.how(super().forward, x)


def _class(how, **more):
    return type("Checkpointed", (Checkpointed,), {"how": staticmethod(how), **more})


class Nested(Block):
    def forward(self, x):
        inner = super().forward
        return PLAIN(lambda t: PLAIN(inner, t).sin() + t, x)


class InPart(Block):
    def forward(self, x):
        return x + PLAIN(lambda t: self.norm(self.linear(t)).relu(), x.cos()) * self.scale


class Several(Block):
    """What it returns is no lone tensor, and it takes keywords."""

    def part(self, x, *, bias, name):
        h = self.norm(self.linear(x)) + bias
        return h.sin(), {"name": name, "h": h}, 3

    def forward(self, x):
        a, named, n = PLAIN(self.part, x, bias=x.mean(), name="h")
        return x + a * n + named[named["name"]]


class InPlace(Block):
    def forward(self, x):
        return PLAIN(lambda t: self.norm(self.linear(t)).mul_(2).relu_() + t, x)


KINDS = {
    "non-reentrant": _class(PLAIN),
    "reentrant": _class(functools.partial(checkpoint, use_reentrant=True)),
    "options": _class(functools.partial(PLAIN, determinism_check="none", preserve_rng_state=False)),
    "early stop": _class(functools.partial(PLAIN, early_stop=False)),
    "list of operators": _class(selective(LINEAR)),
    "policy": _class(selective(saves_linear, allow=True)),
    "context function": _class(functools.partial(PLAIN, context_fn=linear_contexts)),
    "nested": Nested,
    "in part": InPart,
    "several results": Several,
    "in place": InPlace,
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_block_with_a_checkpoint_is_traced_once_and_has_one_body(name, backend):
    check(stack_of(KINDS[name]), X, backend=backend)
    assert [o.outcome.name for o in outcomes()] == ["REUSED"] * 3 + ["TRACED"]
    counted = counters["graph_deduplication"]
    assert counted["bodies"] and counted["operators_outlined"] >= 4 * 4


@pytest.mark.parametrize("name", some(["non-reentrant", "policy", "nested", "several results"], ["policy", "nested"]))
def test_inductor(name):
    compare(stack_of(KINDS[name]), X, backend="inductor")
    assert counters["graph_deduplication"]["bodies"]


class Around(Stack):
    how = staticmethod(PLAIN)

    def forward(self, x):
        for layer in self.layers:
            x = self.how(layer, x)
        return x


class AroundSelective(Around):
    how = staticmethod(selective(saves_linear))


@pytest.mark.parametrize("kind", [Around, AroundSelective])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_checkpoints_around_layers_share_a_body(kind, backend):
    check(lambda: kind([Block(4) for _ in range(4)]), X, backend=backend)
    counted = counters["graph_deduplication"]
    assert counted["bodies"] and counted["operators"] == counted["operators_outlined"]


def _flagged(model, *args):
    """Runs a training step under the flag, and returns why operators were left out of regions."""
    torch._dynamo.reset()
    counters.clear()
    seen = []
    track = torch._dynamo.graph_region_tracker.GraphRegionTracker.find_groups

    def find_groups(tracker, *args):
        found = track(tracker, *args)
        seen.extend(tracker.stats.illegal)
        return found

    with (
        pytest.MonkeyPatch.context() as patch,
        torch._dynamo.config.patch(use_graph_deduplication=True, graph_deduplication_lint=True),
    ):
        patch.setattr(torch._dynamo.graph_region_tracker.GraphRegionTracker, "find_groups", find_groups)
        torch.compile(model, backend="aot_eager")(*args).sum().backward()
    return set(seen)


class Dropped(Block):
    def forward(self, x):
        return PLAIN(lambda t: torch.nn.functional.alpha_dropout(self.norm(self.linear(t)), 0.5, True) + t, x)


class Counting(Block):
    def __init__(self, size):
        super().__init__(size)
        self.register_buffer("calls", torch.zeros(()))

    def part(self, x):
        self.calls.add_(1)
        return self.norm(self.linear(x)) + x

    def forward(self, x):
        return PLAIN(self.part, x)


class InAutocast(Block):
    def part(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.norm(self.linear(x)) + x

    def forward(self, x):
        return PLAIN(self.part, x)


DECISIONS = []


def counts(ctx, op, *args, **kwargs):
    DECISIONS.append(op)
    return len(DECISIONS) % 2 == 0


REFUSED = {
    "a draw": (Dropped, IllegalReason.RANDOM),
    "a buffer is written": (Counting, IllegalReason.BROKEN_SPAN),
    "autocast": (InAutocast, IllegalReason.OTHER_STATE),
    "a policy with a memory": (_class(selective(counts)), IllegalReason.UNKNOWN_POLICY),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_region_may_hold_is_in_no_body_either(name):
    kind, reason = REFUSED[name]
    DECISIONS.clear()
    check(stack_of(kind), X)
    assert reason in _flagged(stack_of(kind)(), X.clone().requires_grad_())
    assert not counters["graph_deduplication"]["operators_outlined"]


def test_a_policy_with_a_memory_is_asked_as_often_as_flat():
    asked = []
    for flag in (False, True):
        DECISIONS.clear()
        with torch._dynamo.config.patch(use_graph_deduplication=flag):
            compare(stack_of(_class(selective(counts))), X, backend="aot_eager")
        asked.append(list(DECISIONS))
    assert asked[0] and asked[0] == asked[1]


def _policy_for(ops):
    return lambda ctx, op, *args, **kwargs: op in ops


class Own(Block):
    """Has a policy of its own."""

    def __init__(self, size, what):
        super().__init__(size)
        self.contexts = functools.partial(create_selective_checkpoint_contexts, what)

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False, context_fn=self.contexts)


OTHER = [torch.ops.aten.native_layer_norm.default]


def _saved(build, flag):
    """Shapes of what the forward of a training step saves for its backward, parameters included."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    shapes = []

    def pack(t):
        shapes.append(tuple(t.shape))
        return t

    model = build()
    with torch._dynamo.config.patch(use_graph_deduplication=flag, graph_deduplication_lint=True):
        step = torch.compile(model, backend="aot_eager")
        for _ in range(2):
            shapes.clear()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                step(X.clone().requires_grad_()).sum().backward()
    return sorted(shapes)


@pytest.mark.parametrize("same", [True, False], ids=["of one list", "of two lists"])
@pytest.mark.parametrize("as_list", [True, False], ids=["lists", "functions of one code"])
def test_blocks_share_a_body_only_if_their_policies_decide_alike(same, as_list):
    def build():
        whats = [LINEAR if same or i % 2 else OTHER for i in range(4)]
        return Stack([Own(4, what if as_list else _policy_for(what)) for what in whats])

    check(build, X)
    flat, flag = _saved(build, False), _saved(build, True)
    # One more: the last block's result, which flat computes again for what comes after it.
    assert len(flag) - len(flat) in (0, 1) and set(flag) == set(flat)
    if as_list:
        assert counters["graph_deduplication"]["bodies"]


@pytest.mark.parametrize("kind", ["non-reentrant", "policy", "nested"])
def test_what_is_saved_is_what_flat_saves(kind):
    flat, flag = _saved(stack_of(KINDS[kind]), False), _saved(stack_of(KINDS[kind]), True)
    assert counters["graph_deduplication"]["bodies"]
    assert len(flag) - len(flat) in (0, 1) and set(flag) == set(flat)


def test_blocks_whose_bodies_differ_in_a_constant_share_none():
    def layers(kind):
        made = [kind(4) for _ in range(8)]
        for layer in made[4:]:
            layer.scale = 3.0
        return made

    check(lambda: Stack(layers(KINDS["non-reentrant"])), X)
    assert names("Checkpointed") == ["TRACED"] * 2 + ["REUSED"] * 6
    counters.clear()
    compare(lambda: Around(layers(Block)), X, backend="aot_eager")
    assert counters["graph_deduplication"]["bodies"] == 2


@pytest.mark.parametrize("name", ["non-reentrant", "nested", "in part"])
@pytest.mark.parametrize("change", ["scale", "module", "hook"])
def test_a_change_behind_a_reused_block_recompiles_as_flat(name, change):
    def compiles(flag):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, seen = stack_of(KINDS[name])(), []
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        with torch._dynamo.config.patch(use_graph_deduplication=flag, graph_deduplication_lint=True):
            step = torch.compile(model, backend=counter)
            seen.append(step(X))
            layer = model.layers[2]
            if change == "scale":
                layer.scale = 5.0
            elif change == "module":
                layer.norm = torch.nn.LayerNorm(4, eps=0.5)
            else:
                layer.linear.weight = torch.nn.Parameter(torch.ones(4, 4), requires_grad=False)
            seen.append(step(X))
        return [t.detach() for t in seen], counter.frame_count

    (flat, flat_compiles), (flag, flag_compiles) = compiles(False), compiles(True)
    assert flat_compiles == flag_compiles > 1
    torch.testing.assert_close(flag, flat, rtol=0, atol=0)


def test_what_a_body_reads_its_region_reads(monkeypatch):
    """A tracer of a body noted the sources that it was asked for, and the region around it never heard of them."""
    from torch._dynamo.regions.trace import call

    save, read = call.save, {}

    def saved(tx, arguments, recorder, region, result):
        read.setdefault(region.function, {s.name.replace("super_", "") for s in recorder.sources})
        return save(tx, arguments, recorder, region, result)

    monkeypatch.setattr(call, "save", saved)
    for kind in (Block, KINDS["non-reentrant"]):
        _flagged(stack_of(kind)(), X.clone().requires_grad_())
    parameters = {s for s in read["Block"] if "_parameters" in s or "scale" in s}
    assert parameters and parameters <= read["Checkpointed"]
