"""A repeated call of a marked region is stamped out whenever that is right, and only then."""

import collections
import enum
import functools
import re

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.regions.outcomes import ReuseMissReason, outcomes
from torch._dynamo.regions.trace.lookup import void_maker
from torch._dynamo.testing import CompileCounter, EagerAndRecordGraphs
from torch._dynamo.utils import counters


region = torch.compiler.nested_compile_region
X = torch.randn(4, 4)
pytestmark = pytest.mark.usefixtures("bodies")


def became():
    return {o: counters["regions"][o] for o in ("traced", "reused", "inlined") if counters["regions"][o]}


def misses():
    return {o.miss for o in outcomes() if o.miss is not None}


def agrees(f, *args, backend="eager"):
    """Compiles ``f``, compares with eager, and again with each reuse verified."""
    wanted = f(*args)
    torch.testing.assert_close(torch.compile(f, backend=backend, fullgraph=True)(*args), wanted)
    seen = became()
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(verify_region_reuse=True):
        torch.testing.assert_close(torch.compile(f, backend=backend, fullgraph=True)(*args), wanted)
    assert bool(counters["regions"]["verified"]) == bool(seen.get("reused"))
    counters["regions"].update(seen)
    return seen


def made_of(guards):
    """Of ``guards``, those that Dynamo will make: of the ones on hooks, it makes none unless it is told to."""
    return [g for g in guards if g.create_fn is not void_maker()]


def guards_of(f, monkeypatch):
    """Name, kind and source of each guard that Dynamo holds at the end of the frame of ``f``."""
    found = []
    stock = OutputGraph.dedup_pass

    def dedup_pass(self):
        found.extend((g.name, g.create_fn_name(), g.source) for g in made_of(self.guards))
        return stock(self)

    with monkeypatch.context() as patch:
        patch.setattr(OutputGraph, "dedup_pass", dedup_pass)
        torch.testing.assert_close(torch.compile(f, backend="eager")(X), f(X))
    return found


class Block(nn.Module):
    def __init__(self, k=0):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.k = k
        self.scale = 2.0
        self.flags = ["a", "b"]

    def forward(self, x):
        y = self.norm(x) @ self.linear.weight + self.linear.bias
        return x + y.relu() * self.scale if "a" in self.flags else x


def blocks(n, marked=True, **settings):
    made = nn.ModuleList(Block(k) for k in range(n)).requires_grad_(False)
    if marked:
        for block in made:
            block.forward = region(block.forward, **settings)
    return made


def chain(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def test_equal_layers_are_traced_once():
    # The first layer's input is the frame's, which Dynamo has not looked at before; the others' are intermediates.
    assert agrees(functools.partial(chain, blocks(6)), X) == {"traced": 1, "reused": 5}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_equal_layers_train_as_unmarked(backend):
    layers = blocks(4)
    layers.requires_grad_(True)
    x = torch.randn(4, 4, requires_grad=True)
    chain(layers, x).sum().backward()
    wanted = [p.grad.clone() for p in layers.parameters()] + [x.grad.clone()]
    layers.zero_grad()
    x.grad = None
    torch.compile(lambda x: chain(layers, x), backend=backend, fullgraph=True)(x).sum().backward()
    torch.testing.assert_close([p.grad for p in layers.parameters()] + [x.grad], wanted, rtol=1e-4, atol=1e-4)
    assert became()["reused"] >= 2


def test_a_stamped_call_is_a_call_of_the_body():
    backend = EagerAndRecordGraphs()
    torch.compile(functools.partial(chain, blocks(4)), backend=backend)(X)
    (graph,) = backend.graphs
    calls = [n for n in graph.graph.nodes if n.target is torch.ops.higher_order.invoke_subgraph]
    assert len(calls) == 4 and len({c.args[1] for c in calls}) == 1
    assert all(c.args[0].op == "get_attr" for c in calls)


# Read sets: one layer differs from the others in one thing.


def _swap_weight(layer):
    layer.linear.weight = nn.Parameter(torch.randn(4, 4).t(), requires_grad=False)


def _hook(layer):
    layer.norm.register_forward_hook(lambda module, args, out: out * 3)


def _pre_hook(layer):
    layer.norm.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def _shadow_method(layer):
    layer.norm.forward = lambda x: x.cos()


class OtherNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * 2


DIFFERENCES = {
    "a float": lambda layer: setattr(layer, "scale", 3.0),
    "an int for a float": lambda layer: setattr(layer, "scale", 2),
    "a bool for a float": lambda layer: setattr(layer, "scale", True),
    "negative zero": lambda layer: setattr(layer, "scale", -0.0),
    "a list": lambda layer: layer.flags.remove("a"),
    "a longer list": lambda layer: layer.flags.append("c"),
    "an attribute of a submodule": lambda layer: setattr(layer.norm, "eps", 0.5),
    "another class": lambda layer: setattr(layer, "norm", OtherNorm(4).requires_grad_(False)),
    "strides of a weight": _swap_weight,
    "dtype of a weight": lambda layer: layer.double().float().linear.to(torch.float32),
    "a frozen weight": lambda layer: layer.linear.weight.requires_grad_(True),
    "no bias": lambda layer: setattr(layer.norm, "bias", None),
    "a hook": _hook,
    "a pre-hook": _pre_hook,
    "a shadowed method": _shadow_method,
    "tied within": lambda layer: setattr(layer.norm, "weight", layer.norm.bias),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_layer_that_differs(difference, when):
    """Before the compile: its own trace, if it matters. After it: as many graphs as the flat program."""
    results, graphs = [], []
    for marked in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        layers = blocks(6, marked)
        counter = CompileCounter()
        compiled = torch.compile(functools.partial(chain, layers), backend=counter)
        if when == "after":
            compiled(X)
        DIFFERENCES[difference](layers[3])
        results.append(compiled(X))
        graphs.append(counter.frame_count)
        if when == "before":  # by default Dynamo does not look for hooks that come later
            torch.testing.assert_close(results[-1], chain(layers, X))
    torch.testing.assert_close(results[1], results[0])
    assert graphs[0] == graphs[1]
    # A weight that requires grad gives all later layers other arguments.
    assert became()["reused"] >= (1 if difference == "a frozen weight" else 2)


@pytest.mark.parametrize("skipped", [True, False])
@pytest.mark.parametrize("hook", [_hook, _pre_hook])
def test_guards_against_later_hooks_are_made_where_dynamo_makes_them(skipped, hook):
    layers, counter = blocks(4), CompileCounter()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=skipped, verify_region_reuse=True):
        compiled = torch.compile(functools.partial(chain, layers), backend=counter)
        torch.testing.assert_close(compiled(X), chain(layers, X))
        assert counters["regions"]["verified"]
        hook(layers[3])
        found = compiled(X)
    assert counter.frame_count == (1 if skipped else 2)
    if not skipped:
        torch.testing.assert_close(found, chain(layers, X))


def test_weights_tied_across_layers_are_not_two_weights():
    layers = blocks(4)
    layers[2].linear = layers[1].linear
    agrees(functools.partial(chain, layers), X)


def test_a_function_of_the_same_code_with_another_closure_is_another():
    def make(k):
        return lambda x: x.sin() * k

    marked = [region(make(k)) for k in (1.0, 2.0, 3.0)]
    assert agrees(lambda x: [r(x) for r in marked], X) == {"traced": 3}


class Flag(enum.Enum):
    A = 1
    B = 2


def test_constants_are_compared_by_type_and_bits():
    marked = region(lambda x, k: x * (k.value if isinstance(k, Flag) else k) if k is not None else x + 1)
    values = [1, True, 1.0, 0.0, -0.0, None, Flag.A, Flag.B, 1, -0.0]
    agrees(lambda x: [marked(x.sin(), k) for k in values], X)
    assert became()["reused"] == 2


def test_the_same_tensor_twice_is_not_two_tensors():
    marked = region(lambda a, b: a + 1 if a is b else a - b)

    def f(x, y):
        x, y = x.sin(), y.cos()
        return marked(x, x), marked(x, y), marked(y, x), marked(y, y)

    assert agrees(f, X, X + 1) == {"traced": 2, "reused": 2}


# The published cases


def test_an_outer_region_over_an_inner_one_that_branches_on_a_flag():
    class Layer(nn.Module):
        def __init__(self, flag):
            super().__init__()
            self.flag = flag

    layers = [Layer(flag) for flag in (True, False, True, False)]
    inner = region(lambda layer, x: x.sin() + 1 if layer.flag else x.cos() - 1)
    # Twice: an inner body that one outer body calls once is put back into that.
    outer = region(lambda layer, x: inner(layer, inner(layer, x * 2)) * 3)

    def f(x):
        for layer in layers:
            x = outer(layer, x)
        return x

    backend = EagerAndRecordGraphs()
    torch.testing.assert_close(torch.compile(f, backend=backend, fullgraph=True)(X.sin()), f(X.sin()))
    called = {}
    for module in backend.graphs[0].modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.target is torch.ops.higher_order.invoke_subgraph:
                called.setdefault(module is backend.graphs[0], set()).add(node.args[1])
    assert len(called[True]) == 2 and len(called[False]) == 2
    assert became()["traced"] == 4
    agrees(f, X)


def test_an_attribute_stored_just_before_the_call_is_read_from_the_frame():
    class Holder:
        t = None

    holder = Holder()
    holder.t = torch.zeros(4, 4)
    marked = region(lambda x: x + holder.t)

    def f(x):
        outs = []
        for k in range(3):
            holder.t = x.sin() * k
            outs.append(marked(x))
        return outs

    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))
    assert "reused" not in became()
    assert ReuseMissReason.READS_PENDING_STATE in misses()


SCALE = 1.0


def test_a_global_rebound_between_two_calls():
    marked = region(lambda x: x * SCALE)

    def f(x):
        global SCALE
        SCALE = 1.0
        a = marked(x)
        SCALE = 5.0
        return a, marked(x)

    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))


# Refusals: each with its reason, and right


def _counted(box, x):
    box.append(x.sum())
    return x.sin()


REFUSED = {
    ReuseMissReason.SIDE_EFFECT: lambda x, box: [region(lambda y: _counted(box, y))(x) for _ in range(2)],
    ReuseMissReason.UNSUPPORTED_ARGUMENT: lambda x, box: [PAIRS(iter([x])) for _ in range(2)],
    ReuseMissReason.UNSUPPORTED_RESULT: lambda x, box: [ITERATES(x) for _ in range(2)],
    ReuseMissReason.RESULT_SHARES_MEMORY: lambda x, box: [VIEWS(x.sin()) for _ in range(2)],
    ReuseMissReason.WRITES_A_TENSOR: lambda x, box: [WRITES(x.sin() if k is None else k) for k in (None, x.cos())],
    ReuseMissReason.CHANGES_GLOBAL_STATE: lambda x, box: [SWITCHES(x) for _ in range(2)],
    ReuseMissReason.ARGUMENTS_DIFFER: lambda x, box: [TIMES(x, k) for k in (2, None)],
    ReuseMissReason.GUARD_FAILS: lambda x, box: [TIMES(x, k) for k in range(2)],
}
PAIRS = region(lambda it: next(it).sin())
ITERATES = region(lambda x: iter([x.sin(), x.cos()]))
VIEWS = region(lambda x: (x.cos(), x.view(-1)))
WRITES = region(lambda x: x.t_().cos())
TIMES = region(lambda x, k: x if k is None else x * k)


@region
def SWITCHES(x):
    torch.set_grad_enabled(not torch.is_grad_enabled())
    return x.sin()


@pytest.mark.parametrize("reason", REFUSED, ids=lambda r: r.name)
def test_a_call_that_is_not_reused_has_its_reason(reason):
    def f(x):
        out = REFUSED[reason](x, [])
        return [next(o) if reason is ReuseMissReason.UNSUPPORTED_RESULT else o for o in out]

    got = torch.compile(f, backend="eager")(X)
    torch.testing.assert_close(got, f(X))
    assert reason in misses()
    assert "reused" not in became()


def test_a_changed_layer_of_the_frame_is_traced_again():
    layers = blocks(3)

    def f(x):
        x = layers[0](x)
        layers[1].scale = 7.0
        x = layers[1](x)
        layers[1].scale = 2.0
        return layers[2](x)

    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))


def test_more_variants_than_allowed_evict_the_least_recently_used():
    marked = region(lambda x, k: x * k, max_reuse_entries=2)
    order = [1, 2, 1, 3, 1, 2]  # 3 evicts 2, not 1

    def f(x):
        return [marked(x, k) for k in order]

    torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))
    assert became() == {"traced": 4, "reused": 2}


@pytest.mark.parametrize("limit", [8, 0])
def test_reuse_installs_the_guards_of_tracing(limit, monkeypatch):
    """The guards that Dynamo holds at the end of the frame are the same, reused or traced."""

    def guards(limit):
        torch._dynamo.reset()
        torch.manual_seed(0)
        layers = blocks(4, max_reuse_entries=limit)
        config = layers[0].flags
        for layer in layers:
            layer.flags = config  # shared by all
        found = guards_of(functools.partial(chain, layers), monkeypatch)
        return {(re.sub(r"_\d+_c\d+|dict___\d+", "", name), kind) for name, kind, _ in found}

    assert guards(8) == guards(0)


def test_verification_raises_with_a_diff_when_a_reuse_would_be_wrong(monkeypatch):
    from torch._dynamo.regions.trace import lookup

    monkeypatch.setattr(lookup, "_check", lambda *_: None)
    layers = blocks(4)
    layers[2].flags.remove("a")
    with torch._dynamo.config.patch(verify_region_reuse=True), pytest.raises(Exception, match="differ from what"):
        torch.compile(functools.partial(chain, layers), backend="eager")(X)


def test_a_write_in_a_later_call_is_seen_by_the_earlier_one():
    """The write hid in a stamp, so a body took what was written later, and autograd found it modified."""

    @region
    def r(x):
        h = x.mul_(1)
        return torch.where(h > 1, h, -x).sin()

    def f(x):
        h = x * 1
        return [r(h) for _ in range(3)]

    x = torch.randn(4, 4, requires_grad=True)
    outs = torch.compile(f, backend="aot_eager", fullgraph=True)(x)
    sum(o.sum() for o in outs).backward()
    got, x.grad = x.grad, None
    sum(o.sum() for o in f(x)).backward()
    torch.testing.assert_close(got, x.grad)


@pytest.mark.parametrize("written", ["operand", "result"])
def test_what_a_stamped_call_takes_or_returns_may_be_written_later(written):
    r = region(lambda a, b: (a + b).exp().sum(0) + a)

    def f(x):
        outs = []
        for k in range(4):
            a = x * k
            y = r(a, x)
            if k == 2:
                (a if written == "operand" else y).mul_(2)
            outs.append(y + a)
        return outs

    x = torch.randn(4, 4, requires_grad=True)
    outs = torch.compile(f, backend="aot_eager", fullgraph=True)(x)
    sum(o.sum() for o in outs).backward()
    got, x.grad = x.grad, None
    wanted = f(x)
    torch.testing.assert_close(outs, wanted)
    sum(o.sum() for o in wanted).backward()
    torch.testing.assert_close(got, x.grad)
    assert became()["reused"] >= 2


@pytest.mark.parametrize("looked_at", [None, 0, 1, 3], ids=lambda i: f"looked at {i}")
@pytest.mark.parametrize("module_first", [True, False])
def test_modules_that_were_looked_at_before_and_others(module_first, looked_at, monkeypatch):
    """Dynamo finds a module's parts by other sources once it has looked at the module."""

    def guards(limit):
        torch._dynamo.reset()
        torch.manual_seed(0)
        layers = blocks(4, marked=False)
        mark = region(max_reuse_entries=limit)
        marked = mark(lambda layer, x: layer(x)) if module_first else mark(lambda x, layer: layer(x))

        def f(x):
            if looked_at is not None:
                x = x * layers[looked_at].scale
            for layer in layers:
                x = marked(layer, x) if module_first else marked(x, layer)
            return x

        found = guards_of(f, monkeypatch)
        return {(re.sub(r"_\d+_c\d+|dict___\d+", "", name), kind, where) for name, kind, where in found}

    traced = guards(0)
    counters.clear()
    assert guards(8) == traced
    assert became()["reused"] >= 2


def test_a_guard_of_another_call_of_the_layer_is_not_made_again(monkeypatch):
    def guards(limit):
        torch._dynamo.reset()
        torch.manual_seed(0)
        layers = blocks(3, marked=False)
        marked = region(max_reuse_entries=limit)(lambda layer, x: layer(x))

        def f(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = marked(layers[1], x).float()
            for layer in layers:
                x = marked(layer, x)
            return x

        found = guards_of(f, monkeypatch)
        return collections.Counter((name, kind) for name, kind, _ in found if "['1']" in name)

    traced = guards(0)
    counters.clear()
    reused = guards(8)
    assert reused <= traced and reused.keys() == traced.keys() and traced
    assert became()["reused"] == 2
