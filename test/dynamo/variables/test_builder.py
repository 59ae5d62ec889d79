"""A plain parameter becomes an input of the graph by a short way: what comes of it is what stock's way makes."""

import contextlib
import gc
import re
from unittest import mock

import pytest
import torch
import torch._dynamo
import torch._dynamo.variables.builder as builders
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._subclasses import plain_parameter
from torch._subclasses.plain_parameter import is_plain_parameter


X = torch.randn(4, 4)


def parameter(value, **settings):
    return nn.Parameter(value, **settings)


def with_gradient():
    p = parameter(torch.randn(4, 4))
    p.grad = torch.randn(4, 4)
    return p


def with_attribute():
    p = parameter(torch.randn(4, 4))
    p.tag = "mine"
    return p


def resized():
    p = parameter(torch.randn(4, 4))
    p.untyped_storage().resize_(128)
    return p


class Sub(nn.Parameter):
    pass


PLAIN = {
    "dense": lambda: parameter(torch.randn(4, 4)),
    "frozen": lambda: parameter(torch.randn(4, 4), requires_grad=False),
    "half": lambda: parameter(torch.randn(4, 4).half()),
    "number": lambda: parameter(torch.tensor(2.0)),
    "float64 number": lambda: parameter(torch.tensor(2.0, dtype=torch.float64)),
    "attribute": with_attribute,
    "more storage": resized,
}
ODD = {
    "integers": lambda: parameter(torch.arange(4), requires_grad=False),
    "transposed": lambda: parameter(torch.randn(4, 4).t()),
    "expanded": lambda: parameter(torch.randn(4, 1).expand(4, 4)),
    "strides of size one": lambda: parameter(torch.randn(4).as_strided((1, 4), (7, 1))),
    "padded": lambda: parameter(torch.randn(4, 8)[:, :4]),
    "padded twice": lambda: parameter(torch.randn(2, 3, 40)[:, :, :4][:, :2]),
    "permuted": lambda: parameter(torch.randn(2, 3, 4, 5).permute(0, 2, 3, 1)[:, :, :, 0]),
    "channels last": lambda: parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)[0, 0]),
    "offset": lambda: parameter(torch.randn(8, 4)[4:]),
    "view": lambda: parameter(torch.randn(16).view(4, 4)),
    "gradient": with_gradient,
    "subclass": lambda: Sub(torch.randn(4, 4)),
    "buffer": lambda: nn.Buffer(torch.randn(4, 4)),
    "conjugated": lambda: parameter(torch.randn(4, 4, dtype=torch.complex64).conj()),
    "complex": lambda: parameter(torch.randn(4, 4, dtype=torch.complex64)),
    "empty": lambda: parameter(torch.randn(0, 4)),
}
KINDS = PLAIN | ODD


class Model(nn.Module):
    def __init__(self, *values):
        super().__init__()
        for i, value in enumerate(values):
            setattr(self, f"p{i}", value)
        self.count = len(values)

    def forward(self, x):
        return [x.sum() + 2 * getattr(self, f"p{i}") for i in range(self.count)]


def of_tensor(value):
    return {
        "class": (type(value), isinstance(value, nn.Parameter), isinstance(value, nn.Buffer)),
        "sizes": (value.shape, value.stride(), value.storage_offset()),
        "storage": value.untyped_storage().nbytes(),
        "kind": (value.dtype, value.device, value.layout, value.requires_grad, value.is_leaf, value.is_conj()),
        "grad": None if value.grad is None else of_tensor(value.grad),
        "item": value.item_memo is None,
    }


def inputs_of(graph):
    """All that is known of each input, and which of them share a storage."""
    storages, found = {}, []
    for node in graph.find_nodes(op="placeholder"):
        value, meta = node.meta["example_value"], dict(node.meta)
        arg = meta.pop("grapharg")
        found.append(
            {
                "name": node.name,
                "type": node.type,
                "value": of_tensor(value),
                "storage": storages.setdefault(value.untyped_storage()._cdata, len(storages)),
                "argument": (arg.source.name, arg.pass_arg_as_tensor, arg.is_tensor),
                "stack": node.stack_trace,
                "modules": [(k, v[0]) for k, v in meta.get("nn_module_stack", {}).items()],
                "dict": meta["tensor_dict"],
                "keys": sorted(map(str, meta)),
            }
        )
    return found


def compiled(f, *args, short):
    """What the backend is given, the guards, and the result."""
    seen, guards = [], []

    def backend(gm, inputs):
        seen.append(inputs_of(gm.graph))
        context = torch._guards.TracingContext.get()
        # As AOTAutograd asks for them: others like those that Dynamo has made.
        again = [context.fake_mode.from_tensor(real) for real in inputs]
        for node, value in zip(gm.graph.find_nodes(op="placeholder"), again, strict=True):
            assert of_tensor(value) == of_tensor(node.meta["example_value"])
        return gm.forward

    def keep(found):
        guards.append(sorted((re.sub(r"___\d+", "", g.name), g.guard_type) for g in found))
        return [True] * len(found)

    torch._dynamo.reset()
    long_way = mock.patch.object(builders, "is_plain_parameter", lambda _: False)
    described = mock.patch.object(plain_parameter, "is_plain_parameter", lambda _: False)
    with contextlib.nullcontext() if short else long_way, contextlib.nullcontext() if short else described:
        with torch.no_grad():
            result = torch.compile(f, backend=backend, options={"guard_filter_fn": keep})(*args)
    return (seen, guards), result


def same_by_both_ways(f, *args):
    short, found = compiled(f, *args, short=True)
    stock, wanted = compiled(f, *args, short=False)
    assert short == stock
    torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        torch.testing.assert_close(found, f(*args))


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_gets_what_stock_gives_it(kind):
    same_by_both_ways(Model(KINDS[kind]()), X)


def test_which_ones_are_plain():
    assert {name for name, make in KINDS.items() if is_plain_parameter(make())} == {
        *PLAIN,
        "integers",
        "transposed",
        "expanded",
        "strides of size one",
        "padded",
        "padded twice",
        "permuted",
        "channels last",
        "view",  # a parameter made of a view is none
        "complex",
    }


def test_tied_parameters():
    p = parameter(torch.randn(4, 4))
    same_by_both_ways(Model(p, parameter(torch.randn(4, 4)), p), X)


def test_parameters_of_one_storage():
    whole = torch.randn(8, 4)
    same_by_both_ways(Model(parameter(whole), parameter(whole[:4]), parameter(whole[4:])), X)
    same_by_both_ways(Model(parameter(whole[:4]), parameter(whole)), X)


@pytest.mark.parametrize("short", [True, False])
def test_guards_are_the_same(short):
    """What recompiles by stock's way does by the short one."""
    changes = {
        "values": (lambda m: m.p0.data.add_(1), 0),
        "another tensor": (lambda m: setattr(m, "p0", parameter(torch.randn(4, 4))), 0),
        "sizes": (lambda m: setattr(m, "p0", parameter(torch.randn(1, 4))), 1),
        "dtype": (lambda m: setattr(m, "p0", parameter(torch.randn(4, 4).double())), 1),
        "gradient": (lambda m: m.p0.requires_grad_(False), 1),
        "strides": (lambda m: setattr(m, "p0", parameter(torch.randn(4, 4).t())), 1),
        # Aliases among parameters are not guarded: see skip_no_tensor_aliasing_guards_on_parameters.
        "tied": (lambda m: setattr(m, "p1", m.p0), 0),
    }
    for name, (change, compiles) in changes.items():
        torch._dynamo.reset()
        counter = CompileCounter()
        model = Model(parameter(torch.randn(4, 4)), parameter(torch.randn(4, 4)))
        with contextlib.ExitStack() as stack:
            if not short:
                stack.enter_context(mock.patch.object(builders, "is_plain_parameter", lambda _: False))
            f = torch.compile(model, backend=counter, dynamic=False)
            f(X)
            change(model)
            torch.testing.assert_close(f(X), model(X))
        assert counter.frame_count == 1 + compiles, name


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients_and_updates(backend):
    def step(model, f):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            sum(y.square().sum() for y in f(X)).backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    torch.manual_seed(0)
    whole = torch.randn(8, 4)
    made = [parameter(torch.randn(4, 4)), parameter(torch.randn(4, 4).t()), parameter(whole[:4]), parameter(whole[4:])]
    values = [p.detach().clone() for p in made]
    model = Model(*made)
    wanted = step(model, model)
    with torch.no_grad():
        for p, value in zip(made, values, strict=True):
            p.copy_(value)
    torch.testing.assert_close(step(model, torch.compile(model, backend=backend)), wanted)


def test_marks_on_parameters_mean_what_they_mean_to_stock():
    def guarded():
        p = parameter(torch.randn(4, 4))
        torch._dynamo.mark_static_address(p, guard=True)
        return p

    def dynamic():
        p = parameter(torch.randn(4, 4))
        torch._dynamo.maybe_mark_dynamic(p, 0)
        return p

    same_by_both_ways(Model(guarded(), dynamic()), X)
    p = guarded()
    same_by_both_ways(lambda x: x + p, X)


@pytest.mark.parametrize("option", ["prepare_freezing", "force_parameter_static_shapes"])
def test_options_decide(option):
    value = not getattr(torch._dynamo.config, option)
    with torch._dynamo.config.patch(option, value):
        model = Model(parameter(torch.randn(4, 4)))
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(model, backend="eager")(X), model(X))
        if option == "force_parameter_static_shapes":
            same_by_both_ways(model, X)


def _own_thresholds(**options):
    """A patch of Dynamo's options.  From 2.15.0 on, an option of stock's sets a threshold; it is off here."""
    if hasattr(torch._dynamo.config, "gc_gen2_threshold_during_compile"):
        options["gc_gen2_threshold_during_compile"] = None
    return torch._dynamo.config.patch(options)


def test_the_threshold_of_the_collector_is_the_programs():
    before, seen = gc.get_threshold(), []

    def backend(gm, _):
        seen.append(gc.get_threshold())
        return gm.forward

    for flag in (True, False):
        torch._dynamo.reset()
        with _own_thresholds(use_graph_deduplication=flag):
            torch.compile(lambda x: x.sin(), backend=backend)(X)
        assert gc.get_threshold() == before
    assert seen == [before, before]


def test_a_threshold_that_the_program_sets_meanwhile_stays():
    before = gc.get_threshold()

    def backend(gm, _):
        gc.set_threshold(5, 6, 7)
        return gm.forward

    try:
        with _own_thresholds(use_graph_deduplication=True):
            torch.compile(lambda x: x.cos(), backend=backend)(X)
        assert gc.get_threshold() == (5, 6, 7)
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_modes_around_the_compile(mode):
    model = Model(parameter(torch.randn(4, 4)), parameter(torch.randn(4)))
    with mode():
        for backend in ("eager", "aot_eager"):
            torch._dynamo.reset()
            torch.testing.assert_close(torch.compile(model, backend=backend)(X), model(X))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_transforms(backend):
    """A parameter that is first met inside a transform."""
    model = Model(parameter(torch.randn(4)), parameter(torch.randn(4, 4).t()))

    def f(x):
        mapped = torch.func.vmap(lambda row: sum(y.sum() for y in model(row)))(x)
        return mapped, torch.func.grad(lambda v: sum(y.sum() for y in model(v)))(x)

    torch.testing.assert_close(torch.compile(f, backend=backend)(X), f(X))


def test_a_function_mode_around_the_compile():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    model = Model(parameter(torch.randn(4, 4)))
    with Mode():
        torch.testing.assert_close(torch.compile(model, backend="aot_eager")(X), model(X))
    with torch.device("meta"):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(model, backend="aot_eager")(X), model(X))
