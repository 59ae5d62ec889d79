"""The symbols of a cached body: numbers for their names in its key, its code and the layouts that its callers need.

Note [A cached body has numbers for symbols]
A body's code names the symbols of its sizes, and a frame gives each symbol a name of its own. So a body's symbols are
numbered by the order in which its key meets them, and code and layouts are kept with these numbers; a frame that finds
the body puts its own names in their place.

What lowering makes of a size depends on more than its expression: on the hint and the range of each symbol, and on what
the shape environment knows of it (guards, what they imply, divisors). All of that is part of the key. Guards that
lowering makes are kept with the body, as are those that writing its code makes, and a frame that finds it makes them
too. The code is written when the whole program has been lowered. The frame may have learned more of a symbol by then,
and the code may rest on that: there is one for each state of knowledge.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import sympy
import torch
from torch._functorch._aot_autograd.canonical_inputs import SymbolNames
from torch._inductor.regions.cache import BodyBypass, BypassReason
from torch.fx.experimental import _config
from torch.utils._sympy.functions import CeilToInt, FloorDiv, IntTrueDiv, Max, Min, Mod, ModularIndexing, PythonMod
from torch.utils._sympy.symbol import SymT, symbol_is_type


# The number of a symbol in the code of a body; it occurs nowhere else in a program.
_NUMBERED = "regionsize7c41_{}_"
_NUMBER = re.compile(r"regionsize7c41_(\d+)_")
_SYMBOL = "size"
_KINDS = (
    sympy.Add,
    sympy.Mul,
    sympy.Pow,
    sympy.Eq,
    sympy.Ne,
    sympy.Lt,
    sympy.Le,
    sympy.Gt,
    sympy.Ge,
    sympy.And,
    sympy.Or,
    sympy.Not,
    CeilToInt,
    FloorDiv,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PythonMod,
)
_OPERATORS: dict[str, Any] = {kind.__name__: kind for kind in _KINDS}


class Symbols:
    """The symbols of one body in a frame, numbered by first occurrence."""

    def __init__(self, shape_env: Any) -> None:
        self.shape_env = shape_env
        self._names = SymbolNames([], shape_env, _NUMBERED)
        # what the shape environment knew of them when the key, or the last guard of the body, was made
        self._known: list[Any] = []
        # How many guards the frame had when lowering, or writing the code, began.
        self._before = 0

    @property
    def numbered(self) -> dict[sympy.Symbol, sympy.Symbol]:
        """Symbol of the frame -> the symbol that is called by its number."""
        return self._names.names

    def text(self, number: Any) -> Any:
        """A size, a stride or an offset for a key: an int, or the text of its expression.  Raises ``BodyBypass``."""
        if type(number) is int:
            return number
        if not isinstance(number, torch.SymInt):
            raise BodyBypass(BypassReason.SYMBOLIC_SIZES, f"a {type(number).__name__}")
        for symbol in number.node.expr.free_symbols:
            if not symbol_is_type(symbol, SymT.SIZE) or symbol not in self.shape_env.backed_var_to_val:
                raise BodyBypass(BypassReason.SYMBOLIC_SIZES, f"{symbol}, which depends on data")
        return self._names.text(number)

    def facts(self) -> list[Any]:
        """What lowering may ask of the symbols, for a key.  Call this when all of them have their numbers."""
        self._before = len(self.shape_env.guards)
        self._known = self._facts()
        return self._known

    def learned(self) -> list[Any]:
        """The guards that were made for the body since, as ``guard`` takes them.  Raises ``BodyBypass``."""
        made = [guard.expr for guard in self.shape_env.guards[self._before :]]
        self._known = self._facts()
        return [self.to_plain(expression) for expression in dict.fromkeys(made)]

    def guard(self, plain: list[Any]) -> None:
        """Makes the guards of a body that was found.  Raises ValueError if one does not hold."""
        for expression in map(self.from_plain, plain):
            if not self.shape_env.evaluate_expr(expression):
                raise ValueError(f"{expression} does not hold")
        self._known = self._facts()

    def learned_since(self) -> str:
        """What the frame has learned of the symbols since the body was lowered or found, as text; empty if nothing."""
        self._before = len(self.shape_env.guards)
        facts = self._facts()
        return "" if facts == self._known else hashlib.sha256(repr(facts).encode()).hexdigest()

    def _facts(self) -> list[Any]:
        if not self.numbered:
            return []
        env, own = self.shape_env, set(self.numbered)
        relations = [guard.expr for guard in env.guards]
        relations += [sympy.Tuple(known, value) for known, value in env.axioms.items()]
        relations += [sympy.Tuple(divisor) for divisor in env.divisible]
        known = SymbolNames([], env, _NUMBERED)
        known.names.update(self.numbered)
        related = sorted({known.text_of(each) for each in relations if own & each.free_symbols})
        alone = [str(table.get(s)) for s in known.names for table in (env.backed_var_to_val, env.replacements)]
        return [[*alone, *known.facts()], related, bool(_config.backed_size_oblivious)]

    def numbers_in(self, code: str) -> str:
        """``code`` with numbers in the place of this frame's names."""
        if not self.numbered:
            return code
        names = {str(symbol): str(numbered) for symbol, numbered in self.numbered.items()}
        return re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[0]], code)

    def names_in(self, code: str) -> str:
        """``code`` with this frame's names in the place of numbers."""
        symbols = list(self.numbered)
        return _NUMBER.sub(lambda found: str(symbols[int(found[1])]), code)

    def to_plain(self, number: Any) -> Any:
        """A size or a guard as numbers and lists.  Raises ``BodyBypass`` if it has an operator of another kind."""
        expression = sympy.sympify(number)
        if isinstance(expression, sympy.Integer):
            return int(expression)
        if expression in self.numbered:
            return [_SYMBOL, list(self.numbered).index(expression)]
        for name, kind in _OPERATORS.items():
            if isinstance(expression, kind):
                return [name, *map(self.to_plain, expression.args)]
        raise BodyBypass(BypassReason.SYMBOLIC_SIZES, f"{expression} is not written down")

    def from_plain(self, plain: Any) -> sympy.Expr:
        """What ``to_plain`` wrote, in this frame's symbols.  Raises an error if it is nothing of the kind."""
        if type(plain) is int:
            return sympy.Integer(plain)
        name, *operands = plain
        if name == _SYMBOL:
            return list(self.numbered)[operands[0]]
        return _OPERATORS[name](*map(self.from_plain, operands))
