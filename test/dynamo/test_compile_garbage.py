"""A compile with regions leaves Python's garbage collector to the program and its other threads."""

import functools
import gc
import threading
import types
import weakref

import pytest
import torch
import torch._dynamo
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config


pytestmark = pytest.mark.usefixtures("bodies")
X = torch.randn(4)


@torch.compiler.nested_compile_region
def marked(x):
    return x.sin()


def collector():
    return gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()


# From 2.15 on, stock itself puts off full collections while it compiles. What regions do is told apart with that off.
STOCKS_OWN = {"gc_gen2_threshold_during_compile": None}


@pytest.fixture(params=["flag", "mark"])
def function(request):
    stocks_own = {name: value for name, value in STOCKS_OWN.items() if hasattr(torch._dynamo.config, name)}
    with torch._dynamo.config.patch(use_graph_deduplication=request.param == "flag", **stocks_own):
        yield marked if request.param == "mark" else torch.sin


@pytest.mark.parametrize("program", ["as it is", "frozen", "off", "own thresholds"])
def test_collector_is_the_programs_during_a_compile(function, program):
    thresholds = gc.get_threshold()
    {
        "as it is": lambda: None,
        "frozen": gc.freeze,
        "off": gc.disable,
        "own thresholds": lambda: gc.set_threshold(123, 4, 5),
    }[program]()
    try:
        seen = []

        def backend(graph, inputs):
            seen.append(collector())
            return graph.forward

        before = collector()
        torch.testing.assert_close(torch.compile(lambda x: function(x) + 1, backend=backend)(X), X.sin() + 1)
        enabled, now, frozen = before
        # Frozen objects may be freed, and no others come to them.
        assert len(seen) == 1
        for each in (*seen, collector()):
            assert each[:2] == (enabled, now) and each[2] <= frozen
        assert (program == "frozen") == (gc.get_freeze_count() > 0)
    finally:
        gc.enable()
        gc.unfreeze()
        gc.set_threshold(*thresholds)


def test_what_the_program_asks_for_meanwhile_stays(function):
    thresholds = gc.get_threshold()

    def backend(graph, inputs):
        gc.freeze()
        gc.set_threshold(321, 4, 5)
        return graph.forward

    try:
        torch.compile(lambda x: function(x) + 1, backend=backend)(X)
        assert gc.get_freeze_count() > 0 and gc.get_threshold() == (321, 4, 5)
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


class Cycle:
    def __init__(self):
        self.itself = self


def test_cycles_of_another_thread_do_not_pile_up(function):
    """A thread that makes cycles while a frame is compiled has as many alive as Python's threshold allows."""
    most = []

    def make_cycles():
        alive = weakref.WeakSet()
        for _ in range(20 * gc.get_threshold()[0]):
            alive.add(Cycle())
            most.append(len(alive))

    def backend(graph, inputs):
        thread = threading.Thread(target=make_cycles)
        thread.start()
        thread.join()
        return graph.forward

    torch.compile(lambda x: function(x) + 1, backend=backend)(X)
    # Each has a dict and a weak reference beside it; collections of older generations take their turns.
    assert max(most) < 4 * gc.get_threshold()[0]


@inductor_config.patch(force_disable_caches=True)
def test_a_backward_that_is_compiled_later(function):
    compile_inner, seen = compile_fx.compile_fx_inner, []

    def noted(gm, inputs, **kwargs):
        seen.append((kwargs.get("is_backward", False), collector()))
        return compile_inner(gm, inputs, **kwargs)

    before = collector()
    x = X.clone().requires_grad_()
    backend = functools.partial(compile_fx.compile_fx, inner_compile=noted)
    torch.compile(lambda x: function(x) * 2, backend=backend)(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * X.cos())
    assert seen == [(False, before), (True, before)]
    assert collector() == before


class Held:
    k = 2.0

    def __init__(self):
        self.inner = types.SimpleNamespace(k=3.0)


class Block(torch.nn.Module):
    """Reads the object that it holds in one of several ways; the norm makes it worth a body."""

    def __init__(self, way, scale=1.0):
        super().__init__()
        self.linear, self.norm, self.way, self.scale = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), way, scale
        held = Held()
        self.seen = weakref.ref(held)
        self.held = {
            "attribute": held,
            "weak reference": held,
            "item": [held],
            "partial": functools.partial(scaled, held),
            "cell": lambda x: x * held.k,
        }[way]

    def forward(self, x):
        x = self.linear(self.norm(x)).sin() * self.scale
        if self.way == "weak reference":
            held = self.seen()
            return x * (5.0 if held is None else held.k)
        if self.way == "attribute":
            return x * self.held.k * self.held.inner.k
        if self.way == "item":
            return x * self.held[0].k
        return self.held(x)


def scaled(held, x):
    return x * held.k


WAYS = ["attribute", "weak reference", "item", "partial", "cell"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend, verified", [("eager", False), ("eager", True), ("aot_eager", False)])
@pytest.mark.parametrize("traces", [1, 2])
def test_objects_that_calls_met_die_with_the_programs_last_reference(function, traces, backend, verified, way):
    """A weak reference of the program tells. What is kept for a backward that is compiled later is no exception, and no
    object waits for a collection. With two traces, a call is compared with one in vain and reused from the other."""
    blocks = torch.nn.ModuleList(Block(way, float(i % traces)) for i in range(5))
    call = torch.compiler.nested_compile_region(Block.forward) if function is marked else lambda block, x: block(x)

    def run(x):
        for block in blocks:
            x = call(block, x)
        return x

    gc.collect()
    gc.disable()
    try:
        with torch._dynamo.config.patch(run_gc_after_compile=False, verify_region_reuse=verified):
            result = torch.compile(run, backend=backend)(torch.randn(2, 4))
        assert torch._dynamo.utils.counters["regions"]["verified" if verified else "reused"]
        for block in blocks:
            block.held = None
        assert [block.seen() for block in blocks] == [None] * 5
        result.sum().backward()
    finally:
        gc.enable()
