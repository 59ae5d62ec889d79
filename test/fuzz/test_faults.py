"""Each fault that is seeded for the fuzzer breaks a program: a fault that no longer reaches the code would show nothing."""

import pytest
import torch
import torch._dynamo
from faults import FAULTS, field_dropped_from_the_cache_key
from torch import nn


X = torch.linspace(-1, 1, 16).view(4, 4)
LAYERS = 5


class Config:
    def __init__(self, k):
        self.k = k

    def __eq__(self, other):
        return self.k == other.k

    __hash__ = None


SHARED = Config(2.0)


class Layer(nn.Module):
    """What ``call`` computes, between operators that are worth a region."""

    def __init__(self, call, held=None):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.call, self.held = call, held

    def forward(self, x):
        return self.call(self, self.linear(x).sin().cos().tanh()).sin().cos() + x


def _by_a_number(layer, x):
    return x * layer.held


def _by_a_name(layer, x):
    return x * 2.0 if layer.held == "double" else x * 3.0


def _by_a_shared_object(layer, x):
    return x * layer.held.k if layer.held is SHARED else x + SHARED.k


def _by_identity(layer, x):
    return x * 2 if layer.held is SHARED else x + 3


def _writes(layer, x):
    layer.held.k = x
    return x * 2


class Model(nn.Module):
    def __init__(self, call, held):
        super().__init__()
        self.layers = nn.ModuleList(Layer(call, held(k)) for k in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class UnderTwoAutocasts(Model):
    def forward(self, x):
        for k, layer in enumerate(self.layers):
            with torch.autocast("cpu", dtype=torch.bfloat16 if k < 3 else torch.float16):
                x = layer(x.float())
        return x


class TransposesResults(Model):
    def forward(self, x):
        for layer in self.layers:
            y = layer(x[:2])
            x = torch.cat((y, y))
            y.t_()
        return x


def _nothing(model):
    pass


def _replaces(value):
    return lambda model: setattr(model.layers[3], "held", value)


# fault -> a program that shows it, and what changes in the model after the compile.
PROGRAMS = {
    "constant_dropped_from_the_node_key": (lambda: Model(_by_a_number, float), _nothing),
    "observation_dropped": (lambda: Model(_by_a_name, lambda k: "double" if k < 3 else "triple"), _nothing),
    "substituted_guard_skipped": (lambda: Model(_by_a_number, lambda k: 2.0), _replaces(3.0)),
    "alias_guard_skipped": (lambda: Model(_by_a_shared_object, lambda k: SHARED), _replaces(Config(4.0))),
    "identity_replaced_by_equality": (
        lambda: Model(_by_identity, lambda k: SHARED if k < 3 else Config(2.0)),
        _nothing,
    ),
    "autocast_states_merged": (lambda: UnderTwoAutocasts(_by_a_number, lambda k: 2.0), _nothing),
    "write_not_carried_over": (lambda: Model(_writes, lambda k: Config(0)), _nothing),
    "results_read_when_stamped": (lambda: TransposesResults(_by_a_number, lambda k: 2.0), _nothing),
}


def _observed(model, program):
    """The result, and what the layers hold then."""
    result = program(X)
    return [result, *(getattr(layer.held, "k", layer.held) for layer in model.layers)]


def _alike(got, wanted):
    if isinstance(got, torch.Tensor) and isinstance(wanted, torch.Tensor):
        return got.shape == wanted.shape and torch.allclose(got, wanted, atol=1e-5)
    return type(got) is type(wanted) and got == wanted


def _is_right(name):
    make, change = PROGRAMS[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        program = torch.compile(model, backend="eager")
        for before in (_nothing, change):
            before(model)
            try:
                got = _observed(model, program)
            except Exception:
                return False
            if not all(map(_alike, got, _observed(model, model))):
                return False
    return True


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fault_breaks_a_program(name):
    assert _is_right(name)
    with next(fault for fault in FAULTS if fault.__name__ == name)():
        assert not _is_right(name)


def test_two_graphs_have_one_key_without_the_graph(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with field_dropped_from_the_cache_key():
        torch._dynamo.reset()
        torch.compile(lambda x: x.sin(), backend="inductor")(X)
        wrong = torch.compile(lambda x: x.cos(), backend="inductor")(X)
    torch.testing.assert_close(wrong, X.sin())


def test_each_fault_has_a_program():
    assert {fault.__name__ for fault in FAULTS} == {*PROGRAMS, "field_dropped_from_the_cache_key"}
