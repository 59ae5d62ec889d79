"""What Dynamo has beside regions: each feature does with the flag and with marks what it does without."""

import io
import pickle

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.regions.outcomes import Outcome, RegionInlineReason, forget_outcomes, outcomes
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x)))) / x.shape[0]


class Stack(nn.Module):
    def __init__(self, make=Block, n=4):
        super().__init__()
        self.blocks = nn.ModuleList(make() for _ in range(n))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def _marked(model):
    for block in model.blocks:
        block.forward = torch.compiler.nested_compile_region(block.forward)
    return model


MODES = ["flag", "mark", "both"]


class Seen:
    """Results, gradients and the number of compiled frames of one way to compile."""

    def __init__(self, mode, make, use, backend="aot_eager", **options):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = make()
        if mode in ("mark", "both"):
            _marked(model)
        counter = CompileCounterWithBackend(backend)
        with torch._dynamo.config.patch(use_graph_deduplication=mode in ("flag", "both")):
            compiled = torch.compile(model, backend=counter, **options) if mode != "eager" else model
            self.results = use(compiled, model)
        self.grads = [p.grad for p in model.parameters()]
        self.frames = counter.frame_count
        self.reused = counters["regions"]["reused"]

    def check(self, other, frames=True):
        torch.testing.assert_close(self.results, other.results)
        torch.testing.assert_close(self.grads, other.grads)
        assert not frames or self.frames == other.frames


def _agree(mode, make, use, reuses=True, **options):
    eager, flat, found = (Seen(m, make, use, **options) for m in ("eager", "flat", mode))
    flat.check(eager, frames=False)
    found.check(flat)
    assert bool(found.reused) == reuses
    return found


def _train(compiled, model, *inputs):
    out = compiled(*inputs)
    out.sum().backward()
    return out.detach()


X = torch.randn(3, 4)


@pytest.mark.parametrize("mode", MODES)
def test_eager_then_compile(mode):
    def use(compiled, model):
        torch.compiler.set_stance("eager_then_compile")
        try:
            return [_train(compiled, model, torch.randn(n, 4)) for n in (3, 5, 7)]
        finally:
            torch.compiler.set_stance("default")

    Seen("flat", Stack, use)  # what the stance learns of sizes outlives a reset
    _agree(mode, Stack, use)


@pytest.mark.parametrize("mode", MODES)
def test_dynamic_sources(mode):
    def use(compiled, model):
        with torch.compiler.config.patch(dynamic_sources="L['x']"):
            return [_train(compiled, model, torch.ones(n, 4)) for n in (3, 5, 7)]

    assert _agree(mode, Stack, use).frames == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["around", "inside"])
def test_traceable_config_patches(mode, where):
    class Patched(Block):
        def forward(self, x):
            with torch._dynamo.patch_dynamo_config(allow_unspec_int_on_nn_module=True):
                return super().forward(x)

    class Around(Stack):
        def forward(self, x):
            with torch._dynamo.patch_dynamo_config(allow_unspec_int_on_nn_module=True):
                return super().forward(x)

    make = Around if where == "around" else lambda: Stack(Patched)
    _agree(mode, make, lambda compiled, model: _train(compiled, model, X))


@pytest.mark.parametrize("mode", MODES)
def test_dont_skip_tracing(mode):
    class Traced(Stack):
        @torch._dynamo.dont_skip_tracing
        def forward(self, x):
            return super().forward(x)

    _agree(mode, Traced, lambda compiled, model: _train(compiled, model, X))


class Quantized(nn.Parameter):
    """A parameter whose values stand for others: it has attributes, and intercepts functions."""

    @staticmethod
    def __new__(cls, data, scale):
        made = torch.Tensor._make_subclass(cls, data, False)
        made.scale = scale
        return made

    def __init__(self, data, scale):
        pass

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class QuantizedBlock(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.weight = Quantized(torch.randn(4, 4), scale)

    def forward(self, x):
        return self.norm(x) @ (self.weight.as_subclass(torch.Tensor) * self.weight.scale)


@pytest.mark.parametrize("mode", MODES)
def test_parameters_of_a_subclass_with_attributes(mode):
    def use(compiled, model):
        out = [compiled(X).detach()]
        model.blocks[2].weight.scale = 5.0
        return [*out, compiled(X).detach()]

    eager, flat, found = (Seen(m, lambda: Stack(QuantizedBlock), use) for m in ("eager", "flat", mode))
    flat.check(eager, frames=False)
    found.check(flat)


@pytest.mark.parametrize("mode", MODES)
def test_inference_mode(mode):
    def use(compiled, model):
        with torch.inference_mode():
            inside = compiled(X)
        return inside.clone(), _train(compiled, model, X)

    _agree(mode, Stack, use)


@pytest.mark.parametrize("mode", MODES)
def test_modules_that_override_named_buffers(mode):
    class Hiding(Block):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.full((4,), 2.0))

        def named_buffers(self, *args, **kwargs):
            return iter(())

        def forward(self, x):
            return super().forward(x) * self.scale

    _agree(mode, lambda: Stack(Hiding), lambda compiled, model: _train(compiled, model, X))


@pytest.mark.parametrize("mode", MODES)
def test_functions_of_torch_func(mode):
    class Differentiated(Stack):
        def forward(self, x):
            y = super().forward(x)
            return y + torch.func.grad(lambda z: z.sin().sum())(x) + torch.func.vmap(torch.cos)(x)

    _agree(mode, Differentiated, lambda compiled, model: _train(compiled, model, X))


@pytest.mark.parametrize("mode", MODES)
def test_a_function_that_is_not_to_be_compiled_inside_a_region(mode):
    @torch.compiler.disable
    def eagerly(x):
        return x * 2

    class Breaks(Block):
        def forward(self, x):
            return super().forward(eagerly(super().forward(x)))

    eager, flat, found = (
        Seen(m, lambda: Stack(Breaks), lambda compiled, model: _train(compiled, model, X))
        for m in ("eager", "flat", mode)
    )
    flat.check(eager, frames=False)
    found.check(flat)


@pytest.mark.parametrize("mode", MODES)
def test_an_error_instead_of_a_graph_break_inside_a_region(mode):
    class Breaks(Block):
        def forward(self, x):
            torch._dynamo.graph_break()
            return super().forward(x)

    class Strict(Stack):
        def forward(self, x):
            with torch._dynamo.error_on_graph_break(True):
                return super().forward(x)

    messages = []
    for each in ("flat", mode):
        with pytest.raises(torch._dynamo.exc.Unsupported) as raised:
            Seen(each, lambda: Strict(Breaks), lambda compiled, model: compiled(X))
        messages.append(str(raised.value).splitlines()[0])
    assert messages[0] == messages[1]


@pytest.mark.parametrize("mode", MODES)
def test_compiled_autograd(mode):
    def use(compiled, model):
        with torch._dynamo.config.patch(compiled_autograd=True):
            return _train(compiled, model, X)

    eager, flat, found = (Seen(m, Stack, use) for m in ("eager", "flat", mode))
    flat.check(eager, frames=False)
    found.check(flat)


@pytest.mark.parametrize("mode", MODES)
def test_compiled_autograd_of_one_graph(mode):
    """Dynamo traces the backward, where it takes no call of a body."""

    def use(compiled, model):
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
            return _train(compiled, model, X)

    forget_outcomes()
    eager, flat, found = (Seen(m, Stack, use) for m in ("eager", "flat", mode))
    flat.check(eager, frames=False)
    found.check(flat)
    inlined = [outcome.reason for outcome in outcomes() if outcome.outcome is Outcome.INLINED]
    assert (RegionInlineReason.COMPILED_AUTOGRAD in inlined) == (mode != "flag")


def _through_a_file(model):
    return pickle.loads(pickle.dumps(model))


def _through_a_package(model):
    file = io.BytesIO()
    with torch.package.PackageExporter(file) as exporter:
        exporter.extern("**")
        exporter.save_pickle("models", "model.pkl", model)
    file.seek(0)
    return torch.package.PackageImporter(file).load_pickle("models", "model.pkl")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("through", [_through_a_file, _through_a_package], ids=["pickle", "package"])
def test_modules_that_were_stored(mode, through):
    _agree(mode, lambda: through(Stack()), lambda compiled, model: _train(compiled, model, X))


@pytest.mark.parametrize("mode", ["flag", "mark"])
@pytest.mark.parametrize("strict", [False, True])
def test_export_with_a_size_that_is_an_argument(mode, strict):
    class Sliced(Stack):
        def forward(self, x, n: int):
            return super().forward(x[:n])

    model = Sliced()
    expected = model(X, 2)
    if mode == "mark":
        _marked(model)
    dynamic = {"x": {0: torch.export.Dim.DYNAMIC}, "n": torch.export.Dim.DYNAMIC}
    with torch._dynamo.config.patch(use_graph_deduplication=mode == "flag"):
        program = torch.export.export(model, (X, 2), dynamic_shapes=dynamic, strict=strict)
    torch.testing.assert_close(program.module()(X, 2), expected)
    torch.testing.assert_close(program.module()(torch.cat([X, X]), 3), model(torch.cat([X, X]), 3))
