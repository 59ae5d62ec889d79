"""Layers that change lists and dicts of their own: a later call changes those of its layer."""

import copy

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters


LAYERS = 6
X = torch.linspace(-1, 1, 8).view(2, 4)


class Layer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first, self.second, self.keeps = nn.Linear(4, 4), nn.Linear(4, 4), getattr(self, kind)
        self.register_buffer("mean", torch.zeros(4))
        self.found, self.seen, self.none = {"scale": 2.0, "more": 1.0}, [1.0, 2.0], []

    def forward(self, x):
        h = self.first(x).tanh()
        return x + self.second(h) * self.keeps(h)

    def binds_a_buffer(self, h):
        self.mean = self.mean * 0.9 + h.detach().mean(0)
        return self.mean

    def sets_an_element(self, h):
        self.found["scale"] = h.detach().mean()
        return self.found["more"]

    def adds_a_key(self, h):
        self.found["last"] = h.detach().mean()
        self.found["number"] = 2
        return len(self.found)

    def adds_a_key_that_is_gone_again(self, h):
        self.found["last"] = 1.0
        del self.found["last"]
        return len(self.found)

    def sets_an_item(self, h):
        self.seen[0] = h.detach().sum()
        return self.seen[1]

    def swaps(self, h):
        self.seen[0], self.seen[1] = self.seen[1], self.seen[0]
        return self.seen[0]

    def appends(self, h):
        self.seen.append(h.detach().sum())
        self.seen.append(3.0)
        return len(self.seen)

    def appends_and_reads(self, h):
        self.none.append(h.detach())
        return self.none[-1]

    def inserts(self, h):
        self.seen.insert(0, h.detach().sum())
        return self.seen[1]

    def keeps_what_it_writes_to(self, h):
        self.none.append(self.mean)
        self.mean.add_(1)
        return 2.0

    def pops(self, h):
        self.seen.pop()
        return self.seen[0]

    def moves_a_key(self, h):
        self.found["scale"] = self.found.pop("scale") + 1
        return self.found["scale"]

    def clears(self, h):
        self.found.clear()
        self.found["scale"] = 3.0
        return 2.0


KINDS = [name for name in vars(Layer) if name not in ("__init__", "forward") and not name.startswith("__")]
# What is left of the container is not what it takes stores and appends to make.
TRACED = {"pops", "moves_a_key", "clears"}


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(kind) for _ in range(LAYERS))
        self.before = lambda k, layer: None

    def forward(self, x):
        for k, layer in enumerate(self.layers):
            self.before(k, layer)
            x = layer(x)
        return x, [len(layer.seen) for layer in self.layers], self.layers[LAYERS - 1].found["scale"]


def _kept(model):
    """What the layers hold after a call."""
    return [(layer.mean, [*layer.seen], [*layer.none], [*layer.found.values()]) for layer in model.layers]


def _run(program, model):
    x = X.clone().requires_grad_()
    out, *rest = program(x)
    return out, rest, torch.autograd.grad(out.sum(), x), _kept(model)


def _check(model, backend="eager", runs=2):
    torch._dynamo.reset()
    counters.clear()
    twin = copy.deepcopy(model)
    program = torch.compile(model, backend=backend, fullgraph=True)
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        for _ in range(runs):
            got, wanted = _run(program, model), _run(twin, twin)
            torch.testing.assert_close(got, wanted)
            assert [list(layer.found) for layer in model.layers] == [list(layer.found) for layer in twin.layers]
    return counters["regions"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_each_layer_changes_its_own(kind, backend):
    runs = 1 if kind in ("pops", "clears") else 2  # the second time, it finds no more than it leaves
    reused = _check(Model(kind), backend, runs)["reused"]
    assert reused == 0 if kind in TRACED else reused >= LAYERS - 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_reuse_is_what_tracing_makes(kind):
    with torch._dynamo.config.patch(verify_region_reuse=True):
        regions = _check(Model(kind), runs=1)
    assert bool(regions["verified"]) is (kind not in TRACED)


@pytest.mark.parametrize("kind", ["appends", "adds_a_key", "sets_an_item"])
def test_a_layer_whose_own_is_another_layers_too(kind):
    """The first of them changes it, and the second finds it changed."""
    model = Model(kind)
    for layer in model.layers[2:]:
        layer.seen, layer.found = model.layers[1].seen, model.layers[1].found
    _check(model)


@pytest.mark.parametrize("kind", ["appends", "adds_a_key", "sets_an_item"])
def test_a_layer_whose_own_the_frame_has_changed(kind):
    def before(k, layer):
        if k == 3:
            layer.seen.append(4.0)
            layer.found["of the frame"] = 4.0

    model = Model(kind)
    model.before = before
    _check(model)


@pytest.mark.parametrize("kind", ["appends", "adds_a_key", "sets_an_item"])
def test_a_layer_whose_own_is_longer(kind):
    model = Model(kind)
    model.layers[3].seen.append(4.0)
    model.layers[4].found["of the layer"] = 4.0
    model.layers[5].found["last"] = 4.0
    _check(model)


@pytest.mark.parametrize("kind", ["appends", "adds_a_key", "binds_a_buffer"])
def test_a_layer_that_is_called_again(kind):
    model = Model(kind)
    model.layers = nn.ModuleList([*model.layers, *model.layers])
    _check(model)
