"""What a changed object leads to: each layer sees what the frame has done to it since the layer before."""

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters


LAYERS = 6
# The layer before which the frame changes what the changed object leads to.
AGAIN = 3
X = torch.linspace(-1, 1, 8).view(2, 4)
BOUND = None


class Made:
    scale = 2.0


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.0


SHARED, OTHER, LIST, MODULE = Made(), Made(), [1.0], Module()


class Layer(nn.Module):
    def __init__(self, reads):
        super().__init__()
        self.first, self.second, self.reads = nn.Linear(4, 4), nn.Linear(4, 4), reads

    def forward(self, x):
        return x + self.second(self.first(x).tanh()) * self.reads()


class Model(nn.Module):
    """``begins`` changes SHARED before the layers, and ``again`` before one of them what SHARED leads to."""

    def __init__(self, begins, again, reads):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(reads) for _ in range(LAYERS))
        self.begins, self.again = begins, again

    def forward(self, x):
        self.begins()
        for k, layer in enumerate(self.layers):
            if k == AGAIN:
                self.again()
            x = layer(x)
        return x


def _holds(value):
    def begins():
        SHARED.held = value

    return begins


def in_a_tuple():
    SHARED.held = (OTHER,)


def in_a_list():
    SHARED.held = [OTHER]


def in_an_object():
    made = Made()
    made.inner = OTHER
    SHARED.held = made


def as_a_global():
    global BOUND
    BOUND = OTHER


def a_tensor():
    SHARED.held = torch.ones(4)


def a_tensor_in_a_tuple():
    SHARED.held = (torch.ones(4), 2.0)


def _scale_other():
    OTHER.scale = 5.0


def _name_other():
    OTHER.is_there = True


def _grow():
    LIST.append(1.0)


def _scale_class():
    Made.scale = 5.0


def _scale_module():
    MODULE.scale = 5.0


def _tag_tensor():
    SHARED.held.scale = 5.0


def _tag_first():
    SHARED.held[0].scale = 5.0


def _nothing():
    pass


# name -> (what the frame changes first, what it changes again, what each layer reads)
CASES = {
    "an object": (_holds(OTHER), _scale_other, lambda: SHARED.held.scale),
    "whether an attribute is there": (_holds(OTHER), _name_other, lambda: 2 if hasattr(SHARED.held, "is_there") else 3),
    "an object in a tuple": (in_a_tuple, _scale_other, lambda: SHARED.held[0].scale),
    "an object in a list": (in_a_list, _scale_other, lambda: SHARED.held[0].scale),
    "an object in an object": (in_an_object, _scale_other, lambda: SHARED.held.inner.scale),
    "an object bound to a global": (as_a_global, _scale_other, lambda: BOUND.scale),
    "a list": (_holds(LIST), _grow, lambda: len(SHARED.held)),
    "a module": (_holds(MODULE), _scale_module, lambda: SHARED.held.scale),
    "a class": (_holds(Made), _scale_class, lambda: SHARED.held.scale),
    "a tensor's attribute": (a_tensor, _tag_tensor, lambda: getattr(SHARED.held, "scale", 2.0)),
    "an attribute of one in a tuple": (a_tensor_in_a_tuple, _tag_first, lambda: getattr(SHARED.held[0], "scale", 2.0)),
}


def _count(what):
    what.scale = getattr(what, "scale", 1.0) + 1.0
    return what.scale


# name -> (what the frame changes first, what each layer changes)
OWN = {
    "an object": (_holds(OTHER), lambda: _count(SHARED.held)),
    "a module": (_holds(MODULE), lambda: _count(SHARED.held)),
    "a class": (_holds(Made), lambda: _count(SHARED.held)),
    "a tensor": (a_tensor, lambda: _count(SHARED.held)),
    "a tensor in a tuple": (a_tensor_in_a_tuple, lambda: _count(SHARED.held[0])),
}


@pytest.fixture(autouse=True)
def as_before():
    global BOUND
    _reset()
    yield
    _reset()
    BOUND = None


def _reset():
    vars(SHARED).clear()
    vars(OTHER).clear()
    LIST[:], MODULE.scale, Made.scale = [1.0], 2.0, 2.0


def _run(program):
    _reset()
    x = X.clone().requires_grad_()
    out = program(x)
    return out, torch.autograd.grad(out.sum(), x)


def _check(model, backend="eager", **options):
    torch._dynamo.reset()
    counters.clear()
    program = torch.compile(model, backend=backend)
    with torch._dynamo.config.patch(use_graph_deduplication=True, **options):
        for _ in range(2):
            torch.testing.assert_close(_run(program), _run(model))
    return counters["regions"]["reused"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_layer_after_the_change_is_not_stamped_out_of_one_before_it(case, backend):
    """A value that existed when the frame began, and was unchanged when the traced call read it, was not compared."""
    assert _check(Model(*CASES[case]), backend) < LAYERS - 2


@pytest.mark.parametrize("case", CASES)
def test_what_is_reused_is_what_tracing_gives(case):
    _check(Model(*CASES[case]), verify_region_reuse=True)


@pytest.mark.parametrize("case", CASES)
def test_without_another_change_all_like_layers_are_reused(case):
    begins, _, reads = CASES[case]
    assert _check(Model(begins, _nothing, reads)) >= LAYERS - 2


@pytest.mark.parametrize("case", OWN)
def test_a_layer_that_changes_it_is_traced(case):
    """The state of a tensor after the layer was taken for what the layer had read."""
    begins, counts = OWN[case]
    assert _check(Model(begins, _nothing, counts)) == 0
