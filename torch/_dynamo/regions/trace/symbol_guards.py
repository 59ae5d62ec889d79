"""What verification compares of a shape environment's guards.

Note [A question that is asked again]
The operands of a reused call have the traced call's expressions for sizes, so tracing the call would ask the shape
environment what it has answered. The answers still hold, since guards are only added. A question that the environment
has answered without a guard may get one now: it has learned equalities since, and proves less with them. (It knows that
``4 % (256 * max(1, s // 2))`` is not 0, and, once it knows that ``s`` is even, it guards that.) Such a guard, like the
second copy of a guard, rejects no sizes. So a guard that tracing adds is a difference only if some sizes satisfy all
guards of the frame and not this one. Verification looks for such sizes near those of the example and near the least.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sympy
from torch.fx.experimental.symbolic_shapes import canonicalize_bool_expr
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.symbol import SymT, symbol_is_type


# At most this many combinations of sizes are tried.
MAX_SAMPLES = 1024
# Sizes from the least one on, and this far around the example's, are tried.
NEAR = 20


def said_of_symbols(guards: Iterable[Any]) -> dict[str, Any]:
    """text -> guard, in order, with one name for symbols that earlier guards hold to be equal."""
    one: dict[Any, Any] = {}
    found = {}
    for guard in guards:
        about = guard.xreplace(one)
        # Which side a symbol is on depends on its name.
        said = about if about in (True, False) else canonicalize_bool_expr(about)
        found[str(said)] = said
        if isinstance(said, sympy.Eq) and all(side.is_Symbol for side in said.args):
            first, second = sorted(said.args, key=str)
            one = {symbol: first if to == second else to for symbol, to in one.items()} | {second: first}
    return found


def without_implied(shape_env: Any, known: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The guards in ``found``, less those that all sizes satisfy that were tried, and that satisfy ``known``.

    Both map a guard's text to the guard, as ``said_of_symbols`` gives it.
    """
    new = {text: guard for text, guard in found.items() if text not in known}
    # Of floats, no numbers are tried.
    open_ = {text: g for text, g in new.items() if all(symbol_is_type(s, SymT.SIZE) for s in g.free_symbols)}
    rejecting = set(new) - set(open_)
    for sizes in _sizes(shape_env, list(known.values()), open_.values()):
        rejecting.update(text for text, guard in open_.items() if not _holds(guard, sizes))
    return {text: guard for text, guard in found.items() if text in known or text in rejecting}


def _sizes(shape_env: Any, known: list[Any], new: Iterable[Any]) -> Iterator[dict[Any, int]]:
    """Sizes that satisfy ``known``, as far as it is about symbols that are tied to those of ``new``."""
    symbols = set[Any]().union(*(guard.free_symbols for guard in new))
    while more := {s for g in known if not symbols.isdisjoint(g.free_symbols) for s in g.free_symbols} - symbols:
        symbols |= more
    about = [guard for guard in known if not symbols.isdisjoint(guard.free_symbols)]
    order = sorted(symbols, key=str)
    for sample in _samples([_tried(shape_env, symbol) for symbol in order]):
        sizes = dict(zip(order, sample, strict=True))
        # In their order: an earlier guard holds a later one's divisor not to be 0.
        if all(_holds(guard, sizes) for guard in about):
            yield sizes


def _tried(shape_env: Any, symbol: Any) -> list[int]:
    example, legal = int(shape_env.backed_var_to_val[symbol]), shape_env.var_to_range[symbol]
    least = int(legal.lower)
    near = {*range(least, least + NEAR), *range(example - NEAR, example + NEAR), 2 * example, 3 * example}
    return sorted(size for size in near if least <= size and size <= legal.upper)


def _samples(tried: list[list[int]]) -> Iterable[tuple[int, ...]]:
    if math.prod(map(len, tried)) <= MAX_SAMPLES:
        return itertools.product(*tried)
    draw = random.Random(0)
    return (tuple(map(draw.choice, tried)) for _ in range(MAX_SAMPLES))


def _holds(guard: Any, sizes: dict[Any, int]) -> bool:
    return bool(sympy_interp(PythonReferenceAnalysis, sizes, guard))
