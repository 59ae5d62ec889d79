"""Bodies whose sizes are symbols are cached: what is found is what lowering makes, and other facts are another key."""

from __future__ import annotations

import os
import re
import shutil
from unittest.mock import patch

import pytest
import sympy
import torch
import torch._dynamo
import torch.nn.functional as F
from testing.body_keys import key, twice
from testing.kernels import fresh_graphs
from torch._dynamo.utils import counters
from torch._inductor.regions import cache_symbols
from torch._inductor.regions.cache import FOLDER, BodyBypass
from torch._inductor.regions.cache_symbols import Symbols
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv


@pytest.fixture(autouse=True)
def own_cache():
    with fresh_graphs(), torch._functorch.config.patch(enable_autograd_cache=False):
        yield


def softened(x, w):
    y = F.gelu(x @ w)
    return (y @ y.transpose(-1, -2)).softmax(-1) @ x.sin() + x


def flattened(x, w):
    return (x @ w).reshape(x.size(0) * x.size(1), -1).cos().reshape(x.shape) * x.size(1)


def summed(x, w):
    return x + (x @ w).sin().sum(1, keepdim=True)


def halved(x, w):
    half = x.size(1) // 2
    return x + torch.cat([x[:, half:], x[:, :half]], 1).sin() @ w


BODIES = [softened, flattened, summed, halved]


def forget_programs():
    """Leaves nothing in the caches but bodies."""
    shutil.rmtree(os.path.join(cache_dir(), "fxgraph"), ignore_errors=True)
    torch._dynamo.reset()
    counters.clear()


def compiled(program, x, w, dims=(1,)):
    """What became of the bodies, and the code, of a program that no cache has as a whole."""
    forget_programs()
    ours = x.clone().requires_grad_(x.requires_grad)
    for dim in dims:
        torch._dynamo.mark_dynamic(ours, dim)
    actual, codes = run_and_get_code(torch.compile(program), ours, w)
    torch.testing.assert_close(actual, program(x, w))
    told = dict(counters["region_bodies"])
    return told, [re.sub(r"(?m)^ *# .*\n", "", code) for code in codes]


def tensors(length=6):
    torch.manual_seed(0)
    return torch.randn(3, length, 8, dtype=torch.float64), torch.randn(8, 8, dtype=torch.float64)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("dims", [(1,), (0, 1)], ids=["length", "batch and length"])
def test_found_code_is_what_lowering_makes(body, dims):
    program = twice(body)
    with torch._inductor.config.patch(fx_graph_cache=False):
        told, plain = compiled(program, *tensors(), dims)
    assert told == {"lowered": 1, "OFF": 1}
    told, fresh = compiled(program, *tensors(), dims)
    assert told == {"lowered": 1}
    told, found = compiled(program, *tensors(), dims)
    assert told == {"found": 1}
    assert plain == fresh == found


def _other(body):
    called = torch.compiler.nested_compile_region(body)

    def program(x, w, *more):
        # Sizes of its own come first, so that the symbols of the body have other names and numbers.
        y = x
        for other in more:
            y = y + other.sin().sum()
        return called(called(called(y, w), w) * 2, w)

    return program


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_another_program_finds_it_under_other_names(body):
    compiled(twice(body), *tensors())
    told, _ = compiled(_other(body), *tensors())
    assert told == {"found": 1}
    x, w = tensors()
    more = torch.randn(11, 5, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    for each in more:
        torch._dynamo.mark_dynamic(each, 0)
    program = _other(body)
    # Other operands die in these calls than in those above, so the code is another; the second time it is there.
    for told in ({"found": 1, "lowered": 1}, {"found": 1}):
        forget_programs()
        ours = x.clone()
        torch._dynamo.mark_dynamic(ours, 1)
        function = torch.compile(program)
        torch.testing.assert_close(function(ours, w, *more), program(x, w, *more))
        assert counters["region_bodies"] == told
    # What was found serves other lengths: the frame is not compiled again, and computes the same.
    frames = counters["frames"]["ok"]
    for length in (5, 9, 40):
        longer = torch.randn(3, length, 8, dtype=torch.float64)
        torch.testing.assert_close(function(longer, w, *more), program(longer, w, *more))
    assert counters["frames"]["ok"] == frames


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_the_frame_has_the_guards_that_lowering_leaves(body):
    seen, make = [], Symbols.__init__

    def noted(symbols, shape_env):
        seen.append(shape_env)
        make(symbols, shape_env)

    guards = []
    with patch.object(Symbols, "__init__", noted):
        for told in ({"lowered": 1}, {"found": 1}):
            assert compiled(twice(body), *tensors())[0] == told
            guards.append({str(guard.expr) for guard in seen[-1].guards})
    assert guards[0] == guards[1]


class Layers(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8, dtype=torch.float64) for _ in range(number))

    def forward(self, x):
        for block in self.blocks:
            x = softened(torch.tanh(block(x)), block.weight)
        return x


def test_a_training_step_of_more_layers_lowers_no_body():
    for number, told in ((3, {"lowered": 2}), (5, {"found": 2})):
        forget_programs()
        model, x = Layers(number), tensors()[0].requires_grad_()
        torch._dynamo.mark_dynamic(x, 1)
        with torch._dynamo.config.patch(use_graph_deduplication=True):
            function = torch.compile(model)
            gradients = []
            for length in (6, 13):
                x = tensors(length)[0].requires_grad_()
                torch._dynamo.mark_dynamic(x, 1)
                for run in (function, model):
                    run(x).sin().sum().backward()
                    gradients.append([x.grad, *(p.grad for p in model.parameters())])
                    x.grad = None
                    model.zero_grad()
                torch.testing.assert_close(gradients[-2], gradients[-1])
        assert counters["region_bodies"] == told and counters["frames"]["ok"] == 1


def test_a_body_of_static_sizes_is_another():
    compiled(twice(softened), *tensors())
    told, _ = compiled(twice(softened), *tensors(), dims=())
    assert told == {"lowered": 1}
    told, _ = compiled(twice(softened), *tensors(), dims=(0, 1))
    assert told == {"lowered": 1}


def test_what_is_known_of_a_size_is_part_of_the_key():
    """A range and a relation let lowering leave out checks and branches."""
    x, w = tensors()
    plain = key(summed, x, w, dynamic=True)
    assert plain == key(summed, x, w, dynamic=True) and len(plain) == 64

    def asked(x, w):
        return x * 2 if x.size(1) * 3 > 12 else x, w

    torch._dynamo.reset()
    called = torch.compiler.nested_compile_region(summed)

    def with_a_guard(x, w):
        y, w = asked(x, w)
        return called(called(y, w), w)

    compiled(lambda x, w: called(called(x * 2, w), w), x, w)
    told, _ = compiled(with_a_guard, x, w)
    assert told == {"lowered": 1}
    told, _ = compiled(with_a_guard, x, w)
    assert told == {"found": 1}


def _symbols(hint=6):
    env = ShapeEnv()
    source = torch._dynamo.source.ConstantSource("length")
    symbol = env.create_symbol(hint, source, DimDynamic.DYNAMIC)
    return env, symbol, env.create_symintnode(symbol, hint=hint, source=source)


def test_a_guard_that_is_made_later_is_noticed():
    env, _, size = _symbols()
    symbols = Symbols(env)
    assert symbols.text(size * 2 + 1) == "2*regionsize7c41_0_ + 1"
    assert symbols.facts()
    assert symbols.learned_since() == ""
    assert size > 4
    once = symbols.learned_since()
    assert once
    assert size > 4 and symbols.learned_since() == once
    assert size > 5 and symbols.learned_since() not in ("", once)


def test_code_is_written_for_what_the_program_has_asked_by_then():
    """Code of the program's own softmax asks for a bound of its length, when the body has been lowered."""
    called = torch.compiler.nested_compile_region(summed)

    def program(x, w):
        y = (x @ x.transpose(1, 2)).softmax(-1) @ x
        return called(called(y, w), w)

    for told in ({"lowered": 1}, {"found": 1}):
        assert compiled(program, *tensors())[0] == told
    # Without that question the code is another.
    told, _ = compiled(lambda x, w: called(called(x * 2, w), w), *tensors())
    assert told["found"] == 1


@pytest.mark.parametrize("hint", [6, 7])
def test_the_hint_is_part_of_the_facts(hint):
    """Lowering chooses by it where both choices are right; so another length compiles the body once more."""
    env, _, size = _symbols(hint)
    symbols = Symbols(env)
    symbols.text(size)
    alone, _, _ = symbols.facts()
    assert str(hint) in alone


def test_sizes_of_results_are_read_as_they_were_written():
    env, symbol, size = _symbols()
    other_env, other, other_size = _symbols()
    one, two = Symbols(env), Symbols(other_env)
    one.text(size), two.text(other_size)
    known = torch.utils._sympy.functions
    rounded = known.CeilToInt(known.IntTrueDiv(symbol, 32))
    for expression in (
        *(8, symbol, 3 * symbol + 2, symbol**2 * 4, symbol * (symbol + 1), symbol <= 2048),
        *(known.FloorDiv(symbol, 2), known.Mod(symbol, 2), known.PythonMod(symbol, 3)),
        *(known.ModularIndexing(symbol, 4, 3), rounded, sympy.Eq(rounded, 7)),
        *(sympy.And(symbol > 2, symbol < 9), sympy.Or(symbol > 9, sympy.Eq(symbol, 3))),
    ):
        read = two.from_plain(one.to_plain(expression))
        assert read == (expression.subs(symbol, other) if expression != 8 else 8)
    with pytest.raises(BodyBypass, match="not written down"):
        one.to_plain(known.TruncToInt(known.IntTrueDiv(symbol, 3)))


def test_a_result_may_have_the_rest_of_a_size():
    def cut(x, w):
        return (x @ w)[:, : x.size(1) % 4 + 2].sin()

    assert [compiled(twice(cut), *tensors(7))[0] for _ in range(2)] == [{"lowered": 1}, {"found": 1}]


def test_a_body_whose_result_has_a_size_of_another_kind_is_lowered_for_its_program(monkeypatch):
    for name in ("Mod", "PythonMod"):
        monkeypatch.delitem(cache_symbols._OPERATORS, name)

    def cut(x, w):
        return (x @ w)[:, : x.size(1) % 4 + 2].sin()

    for _ in range(2):
        told, _ = compiled(twice(cut), *tensors(7))
        assert told["SYMBOLIC_SIZES"] == 1 and "found" not in told


def test_a_size_that_depends_on_data_is_left_alone():
    env = ShapeEnv()
    with pytest.raises(BodyBypass, match="depends on data"):
        Symbols(env).text(env.create_unbacked_symint())


def test_names_of_code_are_whole_words():
    env, symbol, size = _symbols()
    symbols = Symbols(env)
    symbols.text(size)
    code = f"f({symbol}, 2*{symbol}, x{symbol}, {symbol}1)"
    kept = symbols.numbers_in(code)
    assert kept == f"f(regionsize7c41_0_, 2*regionsize7c41_0_, x{symbol}, {symbol}1)"
    assert symbols.names_in(kept) == code


def test_entries_are_kept_in_the_folder_of_bodies():
    compiled(twice(softened), *tensors())
    assert os.path.isdir(os.path.join(cache_dir(), FOLDER))
