"""Guards of the shape environment that verification compares; see Note [A question that is asked again]."""

import pytest
import sympy
from torch._dynamo.regions.trace.symbol_guards import said_of_symbols, without_implied
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import FloorDiv, Max, Mod


@pytest.fixture
def sizes():
    """A shape environment, and its symbols of two sizes: 16 and 24."""
    env = ShapeEnv()
    made = (env.create_symbol(v, ConstantSource(f"size{v}"), dynamic_dim=DimDynamic.DYNAMIC) for v in (16, 24))
    return env, *made


def _new(env, known, found):
    known = said_of_symbols(known)
    found = said_of_symbols(found)
    left = without_implied(env, known, known | found)
    assert left.keys() >= known.keys()
    return [found[text] for text in left if text not in known]


def test_a_guard_that_every_size_satisfies_is_no_difference(sizes):
    env, s, _ = sizes
    implied = sympy.Ne(Mod(4, 256 * Max(1, FloorDiv(s, 2))), 0)
    assert _new(env, [sympy.Eq(Mod(s, 2), 0)], [implied]) == []


def test_a_guard_that_the_frames_guards_imply_is_no_difference(sizes):
    env, s, t = sizes
    assert _new(env, [sympy.Eq(FloorDiv(s, 16), 1), s < 17], [sympy.Eq(s, 16)]) == []
    assert _new(env, [sympy.Lt(s, t), sympy.Lt(t, 30)], [sympy.Lt(s, 29)]) == []


@pytest.mark.parametrize("least", [3, 16, 17, 40])
def test_a_guard_that_rejects_sizes_is_a_difference(sizes, least):
    env, s, t = sizes
    guard = s >= least
    assert _new(env, [sympy.Eq(Mod(t, 2), 0)], [guard]) == list(said_of_symbols([guard]).values())


def test_a_guard_that_rejects_sizes_only_far_from_the_known_ones_is_a_difference(sizes):
    env, s, t = sizes
    known = [sympy.Eq(Mod(s, 8), 0), sympy.Eq(Mod(t, 8), 0)]
    guard = sympy.Ne(s, 2 * t)
    assert _new(env, known, [guard]) == list(said_of_symbols([guard]).values())


def test_the_second_copy_of_a_guard_is_no_difference(sizes):
    env, s, t = sizes
    assert _new(env, [sympy.Eq(s, t)], [sympy.Eq(t, s)]) == []


def test_a_divisor_that_an_earlier_guard_holds_not_to_be_zero(sizes):
    env, s, t = sizes
    half = FloorDiv(s, 4)
    assert _new(env, [half > 0], [Mod(t, half) < half]) == []


def test_a_guard_on_a_float_is_a_difference(sizes):
    env, *_ = sizes
    number = env.create_symbol(0.5, ConstantSource("eps"), dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    guard = number < 1
    assert _new(env, [], [guard]) == list(said_of_symbols([guard]).values())
