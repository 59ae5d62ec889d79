"""Forward hooks of modules, of which each has a number of its own.

Note [Module hooks by their code]
A module keeps its hooks in dicts, each under a number that no other hook of the process has, and ``parallelize_module``
puts hooks on the modules of each layer that differ in their cells only. Dynamo traces a forward hook from the source at
which it stands in the dict, with guards on its code and on each cell, default and attribute that it reads. So a hook
is compared by its code, and two dicts of hooks by the codes in their order.

Where tracing looks up a hook's number in a dict that says more of some hooks (always called, called with keywords),
there is a guard on the number. A reuse makes that guard with the number that the other call's hook has, if the dict
says the same of both. If a module's own dict says anything, its hooks are compared as objects.

Dynamo makes no guard on the numbers themselves. So a call in which other code than ``Module.__call__`` reads a dict of
hooks is not reused.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch._dynamo.regions.trace.function_code import code_of
from torch._guards import Source


# number of a hook in the traced call -> those of the hooks in its place
Numbers = dict[int, list[int]]

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# Dicts of a module that say more of some hooks -> the dict of these hooks.
SAY_MORE = {
    "_forward_hooks_always_called": "_forward_hooks",
    "_forward_hooks_with_kwargs": "_forward_hooks",
    "_forward_pre_hooks_with_kwargs": "_forward_pre_hooks",
}
_MODULES: Any = torch.nn.modules.module
# Dicts of the process that tracing looks up a forward hook's number in.
_OF_PROCESS = ("_global_forward_hooks_always_called", "_global_forward_hooks_with_kwargs")


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes_in(constant)


# The code that reads hooks to call them.
_CALLS = frozenset(_codes_in(torch.nn.Module._call_impl.__code__))


def calls_hooks(code: types.CodeType) -> bool:
    """Whether ``code`` is that of ``Module.__call__``, which runs hooks whatever their numbers are."""
    return code in _CALLS


def is_filled(held: Any) -> bool:
    """Whether a module's dict holds anything.  It may be of the program's class, whose code does not run."""
    return held is not None and not (issubclass(type(held), dict) and dict.__len__(held) == 0)


def values_of(held: Any) -> tuple[Any, ...]:
    """The values of a module's dict, in order.  With the keys, if it is of a class that may have another order."""
    if type(held) is dict or type(held) is collections.OrderedDict:
        return tuple(held.values())
    return (*dict.values(held), *dict.keys(held)) if issubclass(type(held), dict) else (held,)


def state_of_hooks(hooks: dict[int, Any]) -> Hashable:
    """The codes of the hooks in a dict, in order."""
    return tuple(map(code_of, hooks.values()))


def is_dict_of_hooks(holder: Any, name: Any) -> bool:
    """Whether the attribute ``name`` of ``holder`` is a dict of hooks that are compared by their code."""
    if name not in HOOKS or not issubclass(type(holder), torch.nn.Module):
        return False
    own = object.__getattribute__(holder, "__dict__")
    hooks = own.get(name)
    by_number = type(hooks) is collections.OrderedDict and hooks and all(type(n) is int for n in dict.keys(hooks))
    return bool(by_number) and not any(is_filled(own.get(more)) for more in SAY_MORE)


def guards_on_numbers(guards: Iterable[Any], numbers: Container[Any], resolve: Callable[[Source], Any]) -> list[Any]:
    """Source and maker of those of ``guards`` that look one of the hooks' ``numbers`` up in a dict of the process."""
    dicts = [getattr(_MODULES, name) for name in _OF_PROCESS]
    on_numbers = (guard for guard in guards if getattr(guard.create_fn, "keywords", {}).get("key") in numbers)
    found = ((guard.originating_source, guard.create_fn) for guard in on_numbers)
    return [(source, make) for source, make in found if any(resolve(source) is each for each in dicts)]


def with_numbers(source: Source, make: Any, numbers: Numbers) -> list[tuple[Source, Any]]:
    """The guards that ``make`` makes in a call whose hooks have other ``numbers``: those by the earlier ones."""
    own = make.keywords.get("key") if numbers and type(make) is functools.partial else None
    name = getattr(source, "member", None) or getattr(source, "global_name", None)
    if type(own) is not int or own not in numbers or name not in (*SAY_MORE, *_OF_PROCESS):
        return [(source, make)]
    keys = ({**make.keywords, "key": number} for number in numbers[own])
    return [(source, functools.partial(make.func, *make.args, **key)) for key in keys]


def hold_for_numbers(of_hooks: list[Any], numbers: Numbers, resolve: Callable[[Source], Any]) -> bool:
    """Whether the dicts of the process say of this call's hooks what they say of the traced call's."""
    asked = ((resolve(source), make.keywords["key"]) for source, make in of_hooks)
    return all((number in held) == (old in held) for held, old in asked for number in numbers.get(old, ()))


def joined(numbers: dict[tuple[int, str], Numbers]) -> Numbers:
    """The numbers of all modules' forward hooks.  Copies of a module have hooks of one number; others may not."""
    found: Numbers = {}
    for (_, name), each in numbers.items():
        for old, new in each.items() if name == "_forward_hooks" else ():
            found[old] = list(dict.fromkeys((*found.get(old, ()), *new)))
    return found
