"""Symbolic floats, in traced calls and in those stamped out of them: guards and recompiles are those of flat tracing."""

import pytest
import torch
import torch._dynamo
import torch._dynamo.output_graph
from torch._dynamo.utils import counters


floats_in_branches = pytest.mark.skipif(
    torch.__version__ >= "2.15", reason="without regions, too, torch 2.15 raises where a branch reads a symbolic float"
)


nn = torch.nn


class Convolution(nn.Module):
    """Its floats are specialized: batch_norm takes no symbol."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))


class Scaled(nn.Module):
    """Its floats stay symbols: ``eps`` and ``scale`` are operands, ``gate`` is compared."""

    def __init__(self):
        super().__init__()
        self.inner, self.eps, self.scale, self.gate = nn.Linear(8, 8), 1e-6, 2.0, 0.5

    def forward(self, x):
        if self.gate > 0.25:
            x = x.tanh()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return torch.relu(self.inner(x).softmax(-1).sin().cos()) * self.scale


class Unread(Scaled):
    """Reads a float that no operator uses."""

    def forward(self, x):
        unused = self.scale  # noqa: F841
        return torch.relu(self.inner(x).softmax(-1).sin().cos()).tanh()


class Layers(nn.Module):
    def __init__(self, kind, length=3):
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(length))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def image(batch):
    return torch.randn(batch, 4, 6, 6, generator=torch.Generator().manual_seed(batch))


def rows(batch):
    return torch.randn(batch, 5, 8, generator=torch.Generator().manual_seed(batch))


def marked(x):
    torch._dynamo.mark_dynamic(x, 0)
    return x


def change(name, value, layers=(-1,)):
    """Changes a float of some layers, perhaps of their norms."""

    def apply(model):
        for index in layers:
            owner = model.layers[index]
            setattr(owner if hasattr(owner, name) else owner.norm, name, value)

    return apply


PROGRAMS = {
    "batch norm, evaluated": (Convolution, False, [image(2), image(3), change("eps", 1e-2), image(3)]),
    "batch norm, trained": (Convolution, True, [image(2), image(3), change("momentum", 0.3), image(3)]),
    "operands": (Scaled, False, [rows(2), rows(3), change("eps", 1e-2), rows(3), change("scale", 3.0), rows(3)]),
    "operands, trained": (Scaled, True, [rows(2), change("eps", 1e-2, (0, 1)), rows(3)]),
    "a branch": (Scaled, True, [rows(2), change("gate", 0.3), rows(2), change("gate", 0.1), rows(2)]),
    "floats that differ": (Scaled, False, [change("scale", 0.5, (1, 2)), rows(2), change("scale", 0.7, (1,)), rows(3)]),
    "a float that nothing uses": (Unread, True, [rows(2), rows(3)]),
}


def run(monkeypatch, program, backend, flag, dynamic, verify):
    """What each step returns, the gradients, and the guards on symbols of each analysis of the frame."""
    kind, training, steps = program
    guards = []
    cleanup = torch._dynamo.output_graph.OutputGraph.cleanup

    def noting(output):
        guards.append([str(guard.expr) for guard in output.shape_env.guards])
        cleanup(output)

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = Layers(kind).train(training)
    found = []
    with monkeypatch.context() as patched:
        patched.setattr(torch._dynamo.output_graph.OutputGraph, "cleanup", noting)
        with torch._dynamo.config.patch(use_graph_deduplication=flag, verify_region_reuse=verify):
            compiled = torch.compile(model, backend=backend, dynamic=dynamic)
            for step in steps:
                if callable(step) and not isinstance(step, torch.Tensor):
                    step(model)
                    continue
                x = step.clone()
                out = compiled(x if dynamic else marked(x))
                out.sum().backward()
                found += [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return found, guards, dict(counters["regions"])


@pytest.mark.parametrize("backend, dynamic", [("eager", True), ("eager", None), ("aot_eager", True)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_guards_and_recompiles_are_those_of_flat_tracing(monkeypatch, name, backend, dynamic):
    values, guards, _ = run(monkeypatch, PROGRAMS[name], backend, False, dynamic, False)
    ours, found, regions = run(monkeypatch, PROGRAMS[name], backend, True, dynamic, False)
    assert found == guards
    torch.testing.assert_close(ours, values)
    assert regions["reused"] >= 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_stamped_calls_are_what_tracing_would_make(monkeypatch, name):
    _, _, regions = run(monkeypatch, PROGRAMS[name], "eager", True, True, True)
    assert regions["verified"] >= 1


def test_batch_norm_is_outlined_with_dynamic_sizes():
    model = Layers(Convolution, 8).eval()
    with torch._dynamo.config.patch(use_graph_deduplication=True), torch.no_grad():
        torch.compile(model, backend="eager", dynamic=True)(image(2))
    counted = counters["graph_deduplication"]
    assert (counted["bodies"], counted["calls"], counted["operators_outlined"]) == (1, 7, 28)


def test_a_float_of_another_value_is_another_body():
    model = Layers(Convolution, 4).eval()
    x = image(2)
    change("eps", 0.5, (2,))(model)
    with torch._dynamo.config.patch(use_graph_deduplication=True), torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="eager", dynamic=True)(x), model(x))


def test_minus_zero_is_no_zero():
    class Signed(Scaled):
        def forward(self, x):
            x = torch.relu(self.inner(x).softmax(-1).sin().cos())
            if self.scale == 0:
                x = x * self.scale
            return x

    model = Layers(Signed, 4)
    change("scale", 0.0, (0, 1))(model)
    change("scale", -0.0, (2, 3))(model)
    x = rows(2)
    with torch._dynamo.config.patch(use_graph_deduplication=True), torch.no_grad():
        got = torch.compile(model, backend="eager", dynamic=True)(x)
    assert torch.equal(got.signbit(), model(x).signbit())


@floats_in_branches
def test_a_float_that_a_branch_reads_is_not_read_outside_of_it():
    """Dynamo cannot pass the number to a ``cond``; it lets the branch read the float."""

    class Branching(Scaled):
        def forward(self, x):
            return self.inner(x) + torch.cond(x.sum() > 0, lambda h: h * self.scale, lambda h: h + self.eps, (x,))

    model = Layers(Branching, 3)
    change("scale", 3.0)(model)
    x = rows(2)
    wanted = model(x)
    for layer in model.layers:
        layer.forward = torch.compiler.nested_compile_region(layer.forward)
    got = torch.compile(model, backend="eager", dynamic=True, fullgraph=True)(x)
    torch.testing.assert_close(got, wanted)


@floats_in_branches
def test_a_float_that_has_changed_before_is_not_read_outside_of_a_branch():
    """It is a symbol where the first layer's is a constant, although both are the same number now."""

    class Branching(Scaled):
        def forward(self, x):
            return self.inner(x) + torch.cond(x.sum() > 0, lambda h: h * self.scale, torch.cos, (x,))

    model = Layers(Branching, 3)
    for layer in model.layers:
        layer.forward = torch.compiler.nested_compile_region(layer.forward)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for batch, scale in ((2, 2.0), (2, 3.0), (2, 2.0), (3, 2.0)):
        change("scale", scale)(model)
        torch.testing.assert_close(compiled(rows(batch)), model(rows(batch)))


@floats_in_branches
def test_a_lookup_whose_guards_fail_has_read_no_float():
    """The call is traced then, and may read the float in a branch, to which Dynamo cannot pass the number."""

    class Branching(Scaled):
        def forward(self, x):
            if self.scale > 1.5:
                return torch.cond(x.sum() > 0, lambda h: h * self.eps, torch.cos, (x,))
            return self.inner(x) * self.scale + self.eps

    model = Layers(Branching, 3)
    for number, layer in enumerate(model.layers):
        layer.scale = 1.0 + number / 2
        layer.eps = 0.5 + number
        layer.forward = torch.compiler.nested_compile_region(layer.forward)
    x = rows(2)
    wanted = model(x)
    got = torch.compile(model, backend="eager", dynamic=True, fullgraph=True)(x)
    torch.testing.assert_close(got, wanted)
