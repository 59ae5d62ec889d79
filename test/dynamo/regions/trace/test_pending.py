"""Layers that read what the frame has changed: reused while it stays as it is, traced where the frame changes it again."""

import collections

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters


LAYERS = 6
# The layer before which some frames change what they have changed before.
AGAIN = 3
X = torch.linspace(-1, 1, 8).view(2, 4)
REGISTRY = {}
LOSSES = []
BOUND = None


class Made:
    pass


SHARED = Made()


class Layer(nn.Module):
    def __init__(self, reads):
        super().__init__()
        self.first, self.second, self.reads = nn.Linear(4, 4), nn.Linear(4, 4), reads

    def forward(self, x):
        return x + self.second(self.first(x).tanh()) * self.reads()


class Model(nn.Module):
    """``begins`` runs before the layers, and ``between`` before each with its number and input."""

    def __init__(self, begins, between, reads):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(reads) for _ in range(LAYERS))
        self.begins, self.between = begins, between

    def forward(self, x):
        self.begins()
        for k, layer in enumerate(self.layers):
            self.between(k, x)
            x = layer(x)
        return x


def nothing(k, x):
    pass


def scale():
    SHARED.scale = 2.0


def a_dict():
    SHARED.found = {"scale": 2.0, "inner": {"scale": 3.0}, "seen": []}
    SHARED.other = SHARED.found["seen"]


def an_object():
    SHARED.made = Made()
    SHARED.made.scale = 2.0


def an_entry():
    REGISTRY["scale"] = 2.0


def a_global():
    global BOUND
    BOUND = {"scale": 2.0}


def _see(k, x):
    SHARED.found["seen"].append(x)


def _at(place, value):
    """Sets an element of what ``place`` gives, before the layer ``AGAIN``."""

    def between(k, x):
        if k == AGAIN:
            place()["scale"] = value

    return between


def _scale_again(k, x):
    if k == AGAIN:
        SHARED.scale = 5.0


def _set_again(k, x):
    if k == AGAIN:
        SHARED.made.scale = 5.0


def _bring_another(k, x):
    if k == AGAIN:
        SHARED.other = []


def _add_a_name(k, x):
    if k == AGAIN:
        SHARED.is_there = True


def _is_the_list():
    return 2.0 if SHARED.other is SHARED.found["seen"] else 3.0


def _is_there():
    return 2.0 if hasattr(SHARED, "is_there") else 3.0


def _by_keys():
    return 2.0 if "seen" in SHARED.found else 3.0


def a_list():
    SHARED.kept = []


def _append_each(k, x):
    SHARED.kept.append(x)


def _append_itself():
    SHARED.kept.append(2.0)
    return 2.0


def _append_to_seen():
    SHARED.found["seen"].append(2.0)
    return 2.0


def _append_and_read():
    SHARED.kept.append(2.0)
    return SHARED.kept[-1] * len(SHARED.kept)


def _extend():
    SHARED.kept += [2.0]
    return 2.0


# The frame changes what no layer reads, or nothing: all layers but the first two are reused, and those have inputs of
# other kinds.
STAYS = {
    "an attribute": (scale, nothing, lambda: SHARED.scale),
    "a dict of the frame's": (a_dict, nothing, lambda: SHARED.found["scale"]),
    "a dict in a dict": (a_dict, nothing, lambda: SHARED.found["inner"]["scale"]),
    "a list that others append to": (a_dict, _see, _by_keys),
    "which list it is": (a_dict, _see, _is_the_list),
    "an object of the frame's": (an_object, nothing, lambda: SHARED.made.scale),
    "an element": (an_entry, nothing, lambda: REGISTRY["scale"]),
    "a global": (a_global, nothing, lambda: BOUND["scale"]),
    "a list that it appends to": (a_list, nothing, _append_itself),
    "a list that it and others append to": (a_list, _append_each, _append_itself),
    "a list in a dict that it appends to": (a_dict, _see, _append_to_seen),
}
# The frame changes it once more: the layer after that is traced, and those that follow are reused.
CHANGES = {
    "an attribute": (scale, _scale_again, lambda: SHARED.scale),
    "a dict of the frame's": (a_dict, _at(lambda: SHARED.found, 5.0), lambda: SHARED.found["scale"]),
    "a dict in a dict": (a_dict, _at(lambda: SHARED.found["inner"], 5.0), lambda: SHARED.found["inner"]["scale"]),
    "its keys": (a_dict, _at(lambda: SHARED.found, 5.0), lambda: SHARED.found.get("scale", 1.0)),
    "which list it is": (a_dict, _bring_another, _is_the_list),
    "an object of the frame's": (an_object, _set_again, lambda: SHARED.made.scale),
    "whether an attribute is there": (scale, _add_a_name, _is_there),
    "an element": (an_entry, _at(lambda: REGISTRY, 5.0), lambda: REGISTRY["scale"]),
    "a global": (a_global, _at(lambda: BOUND, 5.0), lambda: BOUND["scale"]),
}


def a_set():
    SHARED.kept = {"scale"}


def _leave(k, x):
    if k == AGAIN:
        SHARED.kept.discard("scale")


def a_queue():
    SHARED.kept = collections.deque([1, 2])


def _append(k, x):
    if k == AGAIN:
        SHARED.kept.append(3)


def _count_itself():
    SHARED.scale = SHARED.scale + 1
    return SHARED.scale


# What is not compared, or is different for each layer.
REFUSED = {
    "a set": (a_set, _leave, lambda: 2.0 if "scale" in SHARED.kept else 3.0),
    "a queue": (a_queue, _append, lambda: len(SHARED.kept)),
    "a list that it reads": (a_list, _append_each, lambda: len(SHARED.kept)),
    "an attribute that it sets": (scale, nothing, _count_itself),
    "a list that it appends to and reads": (a_list, nothing, _append_and_read),
    "a list that it extends": (a_list, nothing, _extend),
}


@pytest.fixture(autouse=True)
def as_before():
    global BOUND
    yield
    vars(SHARED).clear()
    REGISTRY.clear()
    LOSSES.clear()
    BOUND = None


def _run(program, x):
    vars(SHARED).clear()
    REGISTRY.clear()
    x = x.clone().requires_grad_()
    out = program(x)
    kept = {name: value for name, value in vars(SHARED).items() if isinstance(value, float)}
    return out, torch.autograd.grad(out.sum(), x), kept, dict(REGISTRY), len(vars(SHARED))


def _check(model, backend="eager"):
    torch._dynamo.reset()
    counters.clear()
    program = torch.compile(model, backend=backend, fullgraph=True)
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        for _ in range(2):
            torch.testing.assert_close(_run(program, X), _run(model, X))
    assert counters["stats"]["unique_graphs"] == 1
    return counters["regions"]


@pytest.mark.parametrize("kind", STAYS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_change_that_stays_is_no_reason_to_trace(kind, backend):
    assert _check(Model(*STAYS[kind]), backend)["reused"] >= LAYERS - 2


@pytest.mark.parametrize("kind", CHANGES)
def test_a_layer_after_another_change_is_traced(kind):
    regions = _check(Model(*CHANGES[kind]))
    assert regions["reused"] >= LAYERS - 4
    assert regions["reused"] < LAYERS - 2


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_compared_is_traced(kind):
    assert not _check(Model(*REFUSED[kind]))["reused"]


@pytest.mark.parametrize("kind", [*STAYS, *CHANGES])
def test_a_reuse_is_what_tracing_makes(kind):
    with torch._dynamo.config.patch(verify_region_reuse=True):
        assert _check(Model(*(STAYS | CHANGES)[kind]))["verified"]


def a_tensor():
    SHARED.kept = torch.ones(4).cumsum(0)


def _another_tensor(k, x):
    if k == AGAIN:
        SHARED.kept = SHARED.kept * 2


def _write_to_it(k, x):
    if k == AGAIN:
        SHARED.kept.mul_(2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("between", [nothing, _another_tensor, _write_to_it])
def test_a_tensor_of_the_frame_is_an_operand(between, backend):
    regions = _check(_with_input(lambda x: SHARED.kept, a_tensor, between), backend)
    assert regions["reused"] == (LAYERS - 3 if between is _another_tensor else LAYERS - 2)


def test_the_state_of_a_tensor_of_the_frame_is_compared():
    def begins():
        SHARED.kept = torch.ones(4)

    def between(k, x):
        if k == AGAIN:
            SHARED.kept.mul_(x[0])

    model = Model(begins, between, lambda: 2.0 if SHARED.kept.requires_grad else 3.0)
    assert 0 < _check(model)["reused"] < LAYERS - 2


def test_an_object_of_each_layer_is_traced():
    """A change behind an argument is another one for each call."""

    class Own(Layer):
        def __init__(self, reads):
            super().__init__(reads)
            self.own = Made()

        def forward(self, x):
            return x + self.second(self.first(x).tanh()) * self.own.scale

    model = Model(lambda: None, nothing, None)
    model.layers = nn.ModuleList(Own(None) for _ in range(LAYERS))

    def between(k, x):
        model.layers[k].own.scale = 2.0 if k == AGAIN else 3.0

    model.between = between
    assert not _check(model)["reused"]


class Reading(Layer):
    """``reads`` is given the layer's input."""

    def forward(self, x):
        return x + self.second(self.first(x).tanh()) + self.reads(x)


def _with_input(reads, begins=lambda: None, between=nothing):
    model = Model(begins, between, None)
    model.layers = nn.ModuleList(Reading(reads) for _ in range(LAYERS))
    return model


def test_an_argument_that_the_frame_has_also_put_elsewhere():
    """What the call does with the one is not what it does with the other."""

    def between(k, x):
        if k == 1:
            SHARED.kept = x

    assert _check(_with_input(lambda x: SHARED.kept * 2 if SHARED.kept is not None else x, _no_tensor, between))


def _no_tensor():
    SHARED.kept = None


@pytest.mark.parametrize("at", range(LAYERS))
def test_an_argument_of_a_later_call_is_what_is_kept(at):
    """The traced call has found two values where this one finds one."""

    def between(k, x):
        if k == 0:
            SHARED.kept = x * 2
        model.passed = SHARED.kept if k == at else x

    model = _with_input(lambda x: SHARED.kept * (2.0 if SHARED.kept is x else 3.0), _no_tensor, between)

    def forward(x):
        for k, layer in enumerate(model.layers):
            between(k, x)
            x = layer(model.passed)
        return x

    model.forward = forward
    _check(model)


def test_what_is_kept_is_what_is_returned():
    """The frame goes on with the same list, not with one like it."""

    def begins():
        SHARED.kept = [2.0]

    class Returning(Layer):
        def forward(self, x):
            return x + self.second(self.first(x).tanh()), SHARED.kept

    model = Model(begins, nothing, None)
    model.layers = nn.ModuleList(Returning(None) for _ in range(LAYERS))

    def forward(x):
        begins()
        for layer in model.layers:
            x, kept = layer(x)
            kept.append(1.0)
        return x * len(SHARED.kept)

    model.forward = forward
    _check(model)


class Outer(nn.Module):
    """A layer of layers, whose calls read what the inner calls read."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList(Layer(lambda: SHARED.found["scale"] * SHARED.scale) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.inner:
            x = layer(x)
        return x


@pytest.mark.parametrize("change", ["scale", "found", None])
def test_a_call_reads_what_the_calls_inside_it_read(change):
    def begins():
        a_dict()
        scale()

    def between(k, x):
        if k == AGAIN and change == "scale":
            SHARED.scale = 0.5
        elif k == AGAIN and change == "found":
            SHARED.found["scale"] = 0.5

    model = Model(begins, between, None)
    model.layers = nn.ModuleList(Outer() for _ in range(LAYERS))
    assert _check(model)["reused"]


def test_a_key_of_the_user_says_nothing_of_what_the_frame_changes():
    region = torch.compiler.nested_compile_region
    marked = region(lambda x: x.sin() + SHARED.kept, reuse_hash_fn=lambda *args: 0)

    def program(x):
        for k in range(LAYERS):
            if k in (0, AGAIN):
                SHARED.kept = x.cos()
            x = marked(x)
        return x

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(program, backend="eager", fullgraph=True)(X), program(X))


class Keeping(Layer):
    """Appends what it computes, as a mixture of experts does with its loss of balance."""

    def __init__(self, kept):
        super().__init__(None)
        self.kept = kept

    def forward(self, x):
        h = self.first(x).tanh()
        self.kept().append(h.pow(2).mean())
        return x + self.second(h)


class Losses(nn.Module):
    def __init__(self, begins, kept):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Keeping(kept) for _ in range(LAYERS))
        self.begins, self.kept = begins, kept

    def forward(self, x):
        self.begins()
        for layer in self.layers:
            x = layer(x)
        weights = torch.arange(1.0, LAYERS + 1)
        return x + (torch.stack(list(self.kept())) * weights).sum()


def _clear():
    LOSSES.clear()


KEPT = {
    "of the frame": (a_list, lambda: SHARED.kept),
    "in a dict": (a_dict, lambda: SHARED.found["seen"]),
    "of a module": (lambda: None, lambda: LOSSES),
    "of a module, cleared": (_clear, lambda: LOSSES),
}


def _run_losses(model, program):
    LOSSES.clear()
    out, *rest = _run(program, X)
    kept = [each.detach() for each in model.kept()]
    return out, rest, kept, torch.autograd.grad(program(X).sum(), list(model.parameters())) if not LOSSES else ()


@pytest.mark.parametrize("where", KEPT)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("verified", [False, True])
def test_what_layers_append_is_there_in_order(where, backend, verified):
    model = Losses(*KEPT[where])
    torch._dynamo.reset()
    counters.clear()
    program = torch.compile(model, backend=backend, fullgraph=True)
    with torch._dynamo.config.patch(use_graph_deduplication=True, verify_region_reuse=verified):
        for _ in range(2):
            torch.testing.assert_close(_run_losses(model, program), _run_losses(model, model))
    assert counters["regions"]["verified" if verified else "reused"] >= 1


def test_a_list_of_the_layer_is_traced():
    """Each layer has one of its own, which an effect would have to find anew."""
    model = Losses(lambda: None, None)
    own = [[] for _ in range(LAYERS)]
    for k, layer in enumerate(model.layers):
        layer.own = own[k]
        layer.kept = lambda layer=layer: layer.own
    model.kept = lambda: [each for kept in own for each in kept]
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        got = torch.compile(model, backend="eager", fullgraph=True)(X)
        lengths = [len(each) for each in own]
        for each in own:
            each.clear()
        torch.testing.assert_close(got, model(X))
    assert lengths == [1] * LAYERS


def test_a_list_that_is_also_an_argument_is_appended_to_by_the_argument():
    class Given(Layer):
        def forward(self, x, kept):
            h = self.first(x).tanh()
            kept.append(h.sum())
            SHARED.kept.append(h.mean())
            return x + self.second(h)

    model = Model(None, None, None)
    model.layers = nn.ModuleList(Given(None) for _ in range(LAYERS))

    def forward(x):
        a_list()
        other = []
        for k, layer in enumerate(model.layers):
            x = layer(x, SHARED.kept if k in (0, AGAIN) else other)
        return x, torch.stack(SHARED.kept), torch.stack(other)

    model.forward = forward
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(X), model(X))
