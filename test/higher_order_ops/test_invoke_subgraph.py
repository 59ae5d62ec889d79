"""Regions under the plain eager backend: autograd sees the operators of the body, as it does without regions."""

from __future__ import annotations

import importlib
import pickle
import sys

import pytest
import torch
import torch._dynamo
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._debug_mode import DebugMode


@torch.compiler.nested_compile_region
def body(x, w):
    y = (x @ w).sin()
    return torch.nn.functional.dropout(y, 0.5), y.detach() * 2, y > 0


def twice(x, w):
    a, b, m = body(x, w)
    c, d, n = body(a, w)
    return c + d, b, m, n


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    torch.manual_seed(0)
    return torch.compile(twice, backend="eager", fullgraph=True)


@pytest.fixture
def args():
    return torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)


def test_backward_and_random_numbers(compiled, args) -> None:
    expected = []
    for function in (twice, compiled):
        torch.manual_seed(1)
        out = function(*args)
        expected.append((*out, *torch.autograd.grad(out[0].pow(2).sum(), args), torch.get_rng_state()))
    for a, b in zip(*expected):
        assert a.requires_grad == b.requires_grad
        torch.testing.assert_close(b, a)


def test_double_backward(compiled, args) -> None:
    x, w = args
    expected = []
    for function in (twice, compiled):
        torch.manual_seed(1)
        (first,) = torch.autograd.grad(function(x, w)[0].sum(), x, create_graph=True)
        expected.append(torch.autograd.grad(first.sum(), w))
    torch.testing.assert_close(expected[1], expected[0])


def test_saved_tensor_hooks_see_the_operators(compiled, args) -> None:
    seen = []
    for function in (twice, compiled):
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(tuple(t.shape)) or t, lambda t: t):
            torch.manual_seed(1)
            function(*args)[0].sum().backward()
        seen.append(packed)
    assert seen[1] == seen[0]


def test_a_graph_with_a_call_is_unpickled(with_regions):
    """Its code is traced with proxies. Entries of AOTAutogradCache with marks in marks could not be read in a compile."""
    graphs = []
    torch._dynamo.reset()
    torch.compile(twice, backend=lambda gm, _: graphs.append(gm) or gm)(torch.ones(8, 8), torch.ones(8, 8))
    with FakeTensorMode():
        again = pickle.loads(pickle.dumps(graphs[0]))
    calls = [
        [n.args[1:2] for n in gm.graph.nodes if n.target is torch.ops.higher_order.invoke_subgraph]
        for gm in (graphs[0], again)
    ]
    assert len(calls[0]) == 2 and calls[1] == calls[0]


def _body_of(operands: int) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"a{i}") for i in range(operands)]
    graph.output((inputs[0],))
    return torch.fx.GraphModule({}, graph)


def _python_calls(function, *args) -> int:
    calls = []
    sys.setprofile(lambda frame, event, arg: calls.append(frame.f_code) if event == "call" else None)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return len(calls)


def test_a_call_costs_the_same_for_any_number_of_operands() -> None:
    few, many = (
        _python_calls(torch.ops.higher_order.invoke_subgraph, _body_of(n), "body", *[torch.ones(2)] * n)
        for n in (2, 40)
    )
    assert few == many < 20


@pytest.mark.parametrize("mode", ["functional", "fake", "proxy", "pre_dispatch", "debug", "tracing"])
def test_a_tracer_is_seen_behind_plain_operands(mode) -> None:
    looks_on = importlib.import_module("torch._higher_order_ops.invoke_subgraph")._tracer_looks_on
    body, operands = _body_of(1), (torch.ones(2),)
    assert not looks_on(body, operands)
    fake = FakeTensorMode()
    seen = []

    def traced(x):
        seen.append(looks_on(body, operands))
        return x

    if mode in ("proxy", "pre_dispatch"):
        make_fx(traced, pre_dispatch=mode == "pre_dispatch")(torch.ones(2))
    else:
        contexts = {
            "functional": FunctionalTensorMode,
            "fake": lambda: fake,
            "debug": DebugMode,
            "tracing": lambda: tracing(TracingContext(fake)),
        }
        with torch.no_grad(), contexts[mode]():
            traced(None)
    assert seen == [True]


@pytest.mark.parametrize("kind", ["fake", "functional", "subclass"])
def test_a_tracer_is_seen_by_its_operands(kind) -> None:
    looks_on = importlib.import_module("torch._higher_order_ops.invoke_subgraph")._tracer_looks_on
    fake = FakeTensorMode().from_tensor(torch.ones(2))
    with FunctionalTensorMode():
        functional = FunctionalTensor.to_functional(torch.ones(2))
    operand = {"fake": fake, "functional": functional, "subclass": TwoTensor(fake, fake)}[kind]
    assert looks_on(_body_of(2), (torch.ones(2), operand))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("flag", [False, True])
def test_hooks_of_all_modules_do_not_run_on_bodies(flag, backend):
    """They are the program's, which has no module here."""
    seen = []

    def layer(x, w):
        return (x @ w).sin().cos().tanh() + x.exp()

    run = layer if flag else torch.compiler.nested_compile_region(layer)

    def program(x, w):
        return run(run(run(x, w), w), w)

    args = torch.randn(4, 4), torch.randn(4, 4)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        compiled = torch.compile(program, backend=backend, fullgraph=True)
        expected = compiled(*args)
    handle = torch.nn.modules.module.register_module_forward_pre_hook(lambda module, args: seen.append(module))
    try:
        torch.testing.assert_close(compiled(*args), expected)
        assert len(seen) <= 1  # AOTAutograd calls its whole graph as a module, with or without regions
    finally:
        handle.remove()
