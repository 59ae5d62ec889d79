"""Names of layers that operators take as hoisted opaque objects: each call passes its own to one body."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounter, EagerAndRecordGraphs
from torch._dynamo.utils import counters
from torch._library.opaque_object import MemberType, get_opaque_type_name, register_opaque_type


region = torch.compiler.nested_compile_region
X = torch.linspace(-1, 1, 4)
pytestmark = pytest.mark.usefixtures("bodies")


class Name:
    def __init__(self, text):
        self.text = text

    def __eq__(self, other):
        return type(other) is Name and self.text == other.text

    def __hash__(self):
        return hash(self.text)

    def __fx_repr__(self):
        return f"Name({self.text!r})", {"Name": Name}


class Open(Name):
    """One whose text programs may read."""

    def __fx_repr__(self):
        return f"Open({self.text!r})", {"Open": Open}

    def __eq__(self, other):
        return type(other) is Open and self.text == other.text

    __hash__ = Name.__hash__


register_opaque_type(Name, typ="value", hoist=True)
register_opaque_type(Open, typ="value", hoist=True, members={"text": MemberType.USE_REAL})
KEPT = {f"layer{i}": torch.full((4,), float(i)) for i in range(6)}
library = torch.library.Library("names_of_layers", "FRAGMENT")


def _define(operator, cls):
    library.define(f"{operator}(Tensor x, {get_opaque_type_name(cls)} name) -> Tensor")
    library.impl(operator, lambda x, name: x + KEPT[name.text], "CompositeExplicitAutograd")
    torch.library.register_fake(f"names_of_layers::{operator}", lambda x, name: torch.empty_like(x), lib=library)
    torch.library.register_autograd(
        f"names_of_layers::{operator}",
        lambda ctx, grad: (grad * 2, None),
        setup_context=lambda ctx, inputs, output: None,
        lib=library,
    )


_define("attend", Name)
_define("attend_open", Open)


class Layer(nn.Module):
    def __init__(self, i, cls=Name):
        super().__init__()
        self.name, self.text = cls(f"layer{i}"), f"layer{i}"
        self.weight = nn.Parameter(torch.full((4,), i + 1.0))


def attending(layer, x):
    return torch.ops.names_of_layers.attend(x.sin() * layer.weight, layer.name).cos()


def attending_by_a_text(layer, x):
    return torch.ops.names_of_layers.attend(x.sin() * layer.weight, Name(layer.text)).cos()


def stack(body, n=4, cls=Name):
    layers = nn.ModuleList(Layer(i, cls) for i in range(n))
    marked = region(body)

    def f(x):
        for layer in layers:
            x = marked(layer, x)
        return x

    return layers, f


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("verified", [False, True], ids=["reused", "verified"])
@pytest.mark.parametrize("body", [attending, attending_by_a_text], ids=lambda b: b.__name__)
def test_each_call_passes_its_own_name(body, backend, verified):
    layers, f = stack(body)
    with torch.no_grad(), torch._dynamo.config.patch(verify_region_reuse=verified):
        torch.testing.assert_close(torch.compile(f, backend=backend, fullgraph=True)(X), f(X))
    assert counters["regions"]["reused"] == (0 if verified else 3)
    assert counters["regions"]["verified"] == (3 if verified else 0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_each_call_passes_its_own_name_in_training(backend):
    layers, f = stack(attending)
    seen = []
    for run in (f, torch.compile(f, backend=backend, fullgraph=True)):
        x = X.clone().requires_grad_()
        layers.zero_grad()
        out = run(x)
        out.pow(2).sum().backward()
        seen.append([out.detach(), x.grad, *(p.grad.clone() for p in layers.parameters())])
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-4)


def test_the_body_takes_the_name():
    _, f = stack(attending)
    backend = EagerAndRecordGraphs()
    with torch.no_grad():
        torch.compile(f, backend=backend, fullgraph=True)(X)
    (graph,) = backend.graphs
    calls = [n for n in graph.graph.nodes if n.target is torch.ops.higher_order.invoke_subgraph]
    assert len(calls) == 4
    assert not any("attend" in str(n.target) for n in graph.graph.nodes)
    assert len({n.args[1] for n in calls}) == 1


def test_another_name_recompiles_as_without_the_mark():
    counts = []
    for mark in (lambda fn: fn, region):
        torch._dynamo.reset()
        layers = [Layer(i) for i in range(4)]
        marked, counter = mark(attending), CompileCounter()

        def f(x, marked=marked, layers=layers):
            for layer in layers:
                x = marked(layer, x)
            return x

        compiled = torch.compile(f, backend=counter, fullgraph=True)
        after = []
        for text in (None, "layer5", "layer5", "layer2"):
            if text is not None:
                layers[2].name = Name(text)
            with torch.no_grad():
                torch.testing.assert_close(compiled(X), f(X))
            after.append(counter.frame_count)
        counts.append(after)
    assert counts[0] == counts[1]


def branching(layer, x):
    y = torch.ops.names_of_layers.attend_open(x.sin(), layer.name)
    return y.cos() if layer.name.text in ("layer0", "layer2") else y.tanh()


def comparing(layer, x):
    y = torch.ops.names_of_layers.attend_open(x.sin(), layer.name)
    return y.cos() if layer.name == Open("layer1") else y.tanh()


@pytest.mark.parametrize("verified", [False, True], ids=["reused", "verified"])
@pytest.mark.parametrize("body", [branching, comparing], ids=lambda b: b.__name__)
def test_a_name_that_is_looked_into_is_a_constant(body, verified):
    _, f = stack(body, cls=Open)
    with torch.no_grad(), torch._dynamo.config.patch(verify_region_reuse=verified):
        torch.testing.assert_close(torch.compile(f, backend="eager")(X), f(X))


def test_names_among_the_arguments():
    body = region(lambda layer, name, x: torch.ops.names_of_layers.attend(x.sin(), name))
    layers = [Layer(0), Layer(1)]

    def f(x):
        for layer in layers:
            x = body(layer, layer.name, x)
        return body(layers[0], layers[1].name, x)

    with torch.no_grad():
        torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))
