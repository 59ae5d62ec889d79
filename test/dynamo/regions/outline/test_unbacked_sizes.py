"""Inputs whose sizes are unbacked symbols (``mark_unbacked``): known when the frame begins, unlike what data decides."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.decorators import mark_unbacked
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters


LAYERS = 4


@pytest.fixture(autouse=True)
def anew():
    counters.clear()
    torch._dynamo.reset()


class Layer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 6), nn.Linear(6, 4), nn.LayerNorm(4)
        self.read = getattr(self, kind)

    def forward(self, x, y):
        return x + self.second(torch.nn.functional.gelu(self.first(self.read(self.norm(x), y))))

    def only_computes(self, x, y):
        return x * x.sum(1, keepdim=True).tanh()

    def takes_its_size(self, x, y):
        return x / x.size(1)

    def makes_a_tensor_of_its_size(self, x, y):
        return x + torch.arange(x.size(1), dtype=x.dtype).unsqueeze(-1).sin()

    def flattens(self, x, y):
        return (x.reshape(-1, 4) * 2).view(x.size(0), x.size(1), 4)

    def pads(self, x, y):
        return torch.cat([x, x.new_zeros(x.size(0), 2, 4)], 1).cumsum(1)[:, 2:]

    def checks_its_size(self, x, y):
        torch._check(x.size(1) < 8)
        return x * 3

    def adds_what_has_another_size(self, x, y):
        return x + y

    def asks_for_its_size(self, x, y):
        return x * 2 if x.size(1) > 4 else x * 3


KINDS = [name for name in vars(Layer) if name not in ("__init__", "forward") and not name.startswith("__")]
region = torch.compiler.nested_compile_region(lambda layer, x, y: layer(x, y))


class Model(nn.Module):
    def __init__(self, kind, mark):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(kind) for _ in range(LAYERS))
        self.mark = mark

    def forward(self, x, y):
        for layer in self.layers:
            x = region(layer, x, y) if self.mark else layer(x, y)
        return x.sum(-1)


def _results(kind, mode, backend):
    """Results, or errors, of some sizes in inference and in training; and the number of compiles."""
    torch._dynamo.reset()
    model = Model(kind, mode == "mark")
    counter = CompileCounterWithBackend(backend)
    found = []
    with torch._dynamo.config.patch(use_graph_deduplication=mode == "flag"):
        program = torch.compile(model, backend=counter, fullgraph=True)
        for grad in (False, True):
            for size in (5, 9, 1):
                x, y = (torch.linspace(-1, k, 8 * size).view(2, size, 4).requires_grad_(grad) for k in (1, 2))
                mark_unbacked(x, 1)
                mark_unbacked(y, 1)
                with torch.set_grad_enabled(grad):
                    try:
                        result = program(x, y)
                    except Exception as error:
                        found.append(type(error).__name__)
                        continue
                    found.append([result, *(torch.autograd.grad(result.sum(), model.parameters()) if grad else ())])
    return found, counter.frame_count


@pytest.mark.parametrize("mode", ["flag", "mark"])
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_flat(kind, mode):
    flat, frames = _results(kind, "flat", "aot_eager")
    counters.clear()
    found, frames_with_regions = _results(kind, mode, "aot_eager")
    assert frames_with_regions == frames
    for one, other in zip(found, flat, strict=True):
        torch.testing.assert_close(one, other) if isinstance(one, list) else None
        assert type(one) is type(other) and (isinstance(one, list) or one == other)
    if any(isinstance(each, list) for each in flat):
        assert counters["regions"]["reused"] >= 2 * (LAYERS - 2)


def _outcome(mode, backend, sizes):
    """The result, or the error, of a call whose inputs have these sizes, after a call where they agree."""
    torch._dynamo.reset()
    model = Model("adds_what_has_another_size", mode == "mark")
    with torch._dynamo.config.patch(use_graph_deduplication=mode == "flag"), torch.no_grad():
        program = torch.compile(model, backend=backend, fullgraph=True)
        for each in [(5, 5), sizes]:
            x, y = (torch.linspace(-1, 1, 8 * size).view(2, size, 4) for size in each)
            mark_unbacked(x, 1)
            mark_unbacked(y, 1)
            try:
                result = program(x, y)
            except Exception as error:
                return type(error)
    return result


@pytest.mark.parametrize("mode", ["flag", "mark"])
@pytest.mark.parametrize("sizes", [(9, 9), (9, 5), (5, 9), (9, 1), (1, 9)], ids=str)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_sizes_that_must_agree_are_compared_when_the_program_runs(backend, sizes, mode):
    flat, found = (_outcome(each, backend, sizes) for each in ("flat", mode))
    if isinstance(flat, type):
        assert found is flat
    else:
        torch.testing.assert_close(found, flat)
