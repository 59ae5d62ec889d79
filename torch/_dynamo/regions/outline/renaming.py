"""Calls of one body whose sizes have other symbols than the traced call's.

Note [A body serves sizes of several names]
Each layer's part of a growing cache has a length of its own, and so a symbol of its own (Note [A call's own symbols] in
own_symbols.py). A backend compiles the body for the symbols of the traced call. What it makes is right for another
call, with other symbols in their place, if the shape environment knows all of the other symbols that it knew of the
traced call's when the body was compiled. So

1. a stamp shares the body only if, at the end of the frame, the guards and the ranges of its symbols are those of the
   traced call's (``shares_body``);
2. the backend makes the body for the symbols of the call that it meets first, the traced one unless a pass of the
   program's has moved it, and takes what the body returns with other symbols in their place (``renaming_of``);
3. when the backend is done, every guard on those symbols is made on those of the other calls as well (``guard_alike``).
   Whatever the backend found out of the symbols, it has guarded by then, before it lowered the body or while it did.
   All have the same hint, so that the guards hold.

Flat, the backend would compile the other call's operators, and would guard what they need. Where the backend guards a
symbol of the traced call for an operator outside of the body, the stamps have a guard more than flat.

Only a body of a frame without a backward is shared so, because a backward may be compiled after the guards have been
written. If no value that the frame makes requires grad, there is none.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch.fx
from torch._dynamo.regions.outline.symbols import input_of, symbols_in
from torch._guards import TracingContext
from torch._higher_order_ops.region_metadata import region_cache, renamings


# symbol of a traced call -> symbol of a stamp
Renaming = dict[Any, Any]


def shares_body(graph: torch.fx.Graph, symbols: Renaming) -> bool:
    """Whether a stamp with ``symbols`` in the place of the traced call's may be a call of the same body.

    The frame has no backward.
    """
    env: Any = TracingContext.get().fake_mode.shape_env  # type: ignore[union-attr]
    # The others are what these are: the shape environment holds two sizes of a layer to be equal.
    own = {symbol for pair in symbols.items() for symbol in pair if env.replace(symbol) == symbol}
    if any(input_of(graph, symbol) is None for symbol in own):
        return False
    back = {new: old for old, new in symbols.items()}
    known = {guard.expr for guard in env.guards}
    return (
        not env.specializations
        and len(back) == len(symbols)
        and all(env.replace(new) == env.replace(old).xreplace(symbols) for old, new in symbols.items())
        and all(env.var_to_range[old] == env.var_to_range[new] for old, new in symbols.items())
        and known.issuperset(_renamed_guards(env, symbols))
        and known.issuperset(_renamed_guards(env, back))
    )


def composed(first: Renaming, other: Renaming) -> Renaming:
    """The renaming from the call that ``first`` leads to, to the call that ``other`` leads to."""
    found = {first.get(old, old): other.get(old, old) for old in {**first, **other}}
    return {old: new for old, new in found.items() if old != new}


def note_renaming(symbols: Renaming) -> None:
    """Notes that the frame has a call with ``symbols`` in the place of the body's."""
    region_cache().renamings.append(symbols)


def guard_alike(env: Any) -> None:
    """Guards, of the symbols of each call of a body, what the shape environment has guarded of the body's.

    To be called when the backend has compiled the frame's graph, and before Dynamo writes the frame's guards.
    """
    all_symbols, made = [*renamings()], -1
    all_symbols += _back_from_stamps(all_symbols)
    while all_symbols and made != len(env.guards):
        made = len(env.guards)  # again: a symbol of a call may be one of another body
        for symbols in all_symbols:
            known = {guard.expr for guard in env.guards}
            for expression in _renamed_guards(env, symbols):
                if expression not in known and not env.evaluate_expr(expression):
                    raise AssertionError(f"{expression} does not hold, though it does of the body's symbols")


def _back_from_stamps(all_symbols: list[Renaming]) -> list[Renaming]:
    """The way back to the traced call's symbols from those of each stamp that a body was made for.

    A pass of the program's over the graph may move a stamp in front of the traced call.
    """
    if not all_symbols:
        return []
    bodies = [body for body in region_cache().proxy_dispatch_cache.values() if isinstance(body, torch.fx.GraphModule)]
    taken = itertools.chain.from_iterable(body.graph.find_nodes(op="placeholder") for body in bodies)
    made_for = {symbol for node in taken for symbol in symbols_in(node.meta.get("val"))}
    first = (symbols for symbols in all_symbols if not made_for.isdisjoint(symbols.values()))
    return [{new: old for old, new in symbols.items()} for symbols in first]


def _renamed_guards(env: Any, symbols: Renaming) -> list[Any]:
    about = (guard.expr for guard in env.guards if not symbols.keys().isdisjoint(guard.expr.free_symbols))
    return [expression.xreplace(symbols) for expression in about]
