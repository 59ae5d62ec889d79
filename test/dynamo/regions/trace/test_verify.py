"""verify_region_reuse raises when a reuse would leave another frame behind than tracing: each part of it can fail."""

import pytest
import torch
import torch._dynamo
from testing.shared_objects import KINDS
from torch import nn
from torch._dynamo.regions.trace import built, lookup, save, verify
from torch._dynamo.regions.trace.verify import _with_one_name
from torch._dynamo.utils import counters


X = torch.randn(2, 3)
CONFIG = KINDS["plain object"][0](2.0)
SENTINEL = object()


class Layer(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.held = held


class ReadsAGlobal(Layer):
    def forward(self, x):
        return self.linear(x).sin() * self.held.k + CONFIG.k


class Compares(Layer):
    def forward(self, x):
        return self.linear(x).sin() * (2 if self.held is SENTINEL else 3)


class AsksForAGradient(Layer):
    def __init__(self, held):
        super().__init__(held)
        self.register_buffer("b", torch.ones(3))

    def forward(self, x):
        return self.linear(x) * (2 if self.b.requires_grad else 3)


def _in_turn(layers):
    def program(x):
        for layer in layers:
            x = torch.compiler.nested_compile_region(layer)(x)
        return x

    return program


def _with_a_write():
    layer, weight = AsksForAGradient(None), nn.Parameter(torch.ones(3))
    marked = torch.compiler.nested_compile_region(layer)

    def program(x):
        x = marked(marked(x))
        layer.b.mul_(weight)
        return marked(x)

    return program


def _shared():
    return _in_turn([ReadsAGlobal(CONFIG) for _ in range(4)])


def _verify(program):
    torch._dynamo.reset()
    with torch._dynamo.config.patch(verify_region_reuse=True):
        return torch.compile(program, backend="eager", fullgraph=True)(X)


def _without(monkeypatch, wanted):
    """What is expected of a reuse lacks the guards of which ``wanted`` is false."""
    whole = lookup.substituted_guards
    monkeypatch.setattr(
        verify,
        "substituted_guards",
        lambda match: [(s, make) for s, make in whole(match) if wanted(getattr(make, "func", make).__name__)],
    )


@pytest.mark.parametrize("kind", ["DUPLICATE_INPUT", "TYPE_MATCH", "NOT_PRESENT_IN_GENERIC_DICT"])
def test_a_guard_that_is_left_out_is_seen(monkeypatch, kind):
    _verify(_shared())
    _without(monkeypatch, lambda name: name != kind)
    with pytest.raises(Exception, match="guards differ"):
        _verify(_shared())


def test_a_guard_too_many_is_seen(monkeypatch):
    whole = lookup.substituted_guards
    extra = torch._dynamo.source.LocalSource("x"), torch._dynamo.guards.GuardBuilder.ID_MATCH
    monkeypatch.setattr(verify, "substituted_guards", lambda match: [*whole(match), extra])
    with pytest.raises(Exception, match="guards differ"):
        _verify(_shared())


def test_an_object_that_would_not_be_tracked_is_seen(monkeypatch):
    monkeypatch.setattr(verify, "to_be_tracked", lambda match: [])
    with pytest.raises(Exception, match="tracked differ"):
        _verify(_shared())


def test_objects_that_are_taken_for_one_another_are_seen(monkeypatch):
    program = _in_turn([Compares(held) for held in (SENTINEL, object(), SENTINEL, object())])
    _verify(program)
    monkeypatch.setattr(lookup, "_check_identities", lambda *_: None)
    with pytest.raises(Exception, match="operators differ"):
        _verify(program)


def test_a_tensor_that_came_to_require_grad_is_seen(monkeypatch):
    _verify(_with_a_write())
    for module in (built, lookup, save):
        monkeypatch.setattr(module, "tensor_state", lambda tracker: None)
    with pytest.raises(Exception, match="operators differ"):
        _verify(_with_a_write())


def test_a_symbol_that_tracing_would_make_is_seen(monkeypatch):
    states = iter(range(1000))
    state = verify.frame_state
    monkeypatch.setattr(verify, "frame_state", lambda tx: state(tx)._replace(symbols=({}, [f"s{next(states)}"])))
    with pytest.raises(Exception, match="symbols differ"):
        _verify(_shared())


@pytest.mark.parametrize("key", [3.0, (3,)], ids=str)
def test_a_guard_of_the_frames_behind_the_argument_is_no_difference(key):
    class Looks(Layer):
        def forward(self, x):
            return self.linear(x).sin() * (2 if key in self.held else 3)

    held = {2.0, 9.0}
    layers = [Looks(held) for _ in range(3)]
    region = torch.compiler.nested_compile_region

    def program(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = region(layers[1])(x).float()
        for layer in layers:
            x = region(layer)(x)
        return x

    assert torch.equal(torch.compile(program, backend="eager", fullgraph=True)(X), program(X))
    assert torch._dynamo.utils.counters["regions"]["reused"] == 2
    assert torch.equal(_verify(program), program(X))


def _alias(other):
    return f"DUPLICATE_INPUT source_b={other}"


def test_guards_on_one_object_by_two_names_are_the_same():
    by_dict = {("x.__dict__['b']", "TYPE"), ("x.__dict__['b'][0]", "EQUALS"), ("x.b", _alias("x.__dict__['b']"))}
    by_name = {("x.b", "TYPE"), ("x.b[0]", "EQUALS"), ("x.__dict__['b']", _alias("x.b"))}
    by_name |= {("x.__dict__['b'][0]", _alias("x.b[0]"))}
    wanted = {("x.b", "TYPE"), ("x.b[0]", "EQUALS"), ("x.__dict__['b']", "is x.b")}
    assert _with_one_name(by_dict, by_dict) == _with_one_name(by_name, by_name) == wanted


@pytest.mark.parametrize("lost", [("x.b", "TYPE"), ("y.c", _alias("x.b")), ("z", _alias("x.b"))], ids=str)
def test_a_guard_that_another_name_does_not_stand_for_is_seen(lost):
    guards = {("x.b", "TYPE"), ("x.bc", "TYPE"), ("y.c", _alias("x.b")), ("z", _alias("x.b"))}
    assert _with_one_name(guards, guards) != _with_one_name(guards - {lost}, guards - {lost})


WEIGHTS = [torch.linspace(k, 1, 3) for k in range(5)]


@torch.compiler.nested_compile_region
def _of_one_weight(x, weights, i):
    return (x * weights[i]).sin().tanh().exp()


@torch.compiler.nested_compile_region
def _of_itself(x, n):
    return (x * 2).sin().exp() if n <= 0 else _of_itself(x, n - 1) + (x * 3).cos()


def _by_index(x):
    for i in range(len(WEIGHTS)):
        x = x + _of_one_weight(x, WEIGHTS, i)
    return x


def _by_recursion(x):
    return _of_itself(x, 3) + _of_itself(x, 3)


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def scaled(self, x, scale=2.0, *, shift=3):
        return self.linear(x).sin() * scale + shift


class ScalesTwice(Scales):
    def scaled(self, x, scale=3.0):
        return super().scaled(x).sin() + super().scaled(x, 1.0)

    def forward(self, x):
        return self.scaled(x)


@pytest.mark.parametrize(
    "program",
    [_by_index, _by_recursion, _in_turn([ScalesTwice() for _ in range(4)])],
    ids=["an index that the lookup has read", "a recursion", "defaults of a function of the base class"],
)
def test_what_a_lookup_reads_is_no_difference(program):
    counters.clear()
    torch.testing.assert_close(_verify(program), program(X))
    assert counters["regions"]["verified"]
