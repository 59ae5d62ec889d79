"""Forward hooks of modules, of which each has a number of its own.

Note [Module hooks by their code]
A module keeps its hooks in dicts, each under a number that no other hook of the process has, and ``parallelize_module``
puts hooks on the modules of each layer that differ in their cells only. Dynamo traces a forward hook from the source at
which it stands in the dict, with guards on its code and on each cell, default and attribute that it reads. So a hook
is compared by its code, and two dicts of hooks by the codes in their order.

Where tracing looks up a hook's number in a dict that says more of some hooks (always called, called with keywords),
there is a guard on the number. A reuse makes that guard with the number that the other call's hook has. If one of these
dicts holds anything, hooks are compared as objects.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Container, Hashable, Iterable
from typing import Any

import torch
from torch._guards import Source


HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_SAY_MORE = ("_forward_hooks_always_called", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
_MODULES: Any = torch.nn.modules.module
# Dicts of the process that tracing looks up a hook's number in.
_OF_PROCESS = ("_global_forward_hooks_always_called", "_global_forward_hooks_with_kwargs")


def are_by_code(own: dict[str, Any]) -> bool:
    """Whether the hooks of a module with these attributes are compared by their code."""
    return not any(own.get(name) for name in _SAY_MORE)


def code_of(hook: Any) -> Hashable:
    """What a guard on a hook compares: the code and globals of a plain function, anything else itself."""
    return (id(hook.__code__), id(hook.__globals__)) if type(hook) is types.FunctionType else id(hook)


def state_of_hooks(hooks: dict[int, Any]) -> Hashable:
    """The codes of the hooks in a dict, in order."""
    return tuple(map(code_of, hooks.values()))


def is_dict_of_hooks(holder: Any, name: Any) -> bool:
    """Whether the attribute ``name`` of ``holder`` is a dict of hooks that are compared by their code."""
    if name not in HOOKS or not issubclass(type(holder), torch.nn.Module):
        return False
    own = object.__getattribute__(holder, "__dict__")
    return bool(own.get(name)) and type(own[name]) is collections.OrderedDict and are_by_code(own)


def guards_on_numbers(guards: Iterable[Any], numbers: Container[Any], resolve: Callable[[Source], Any]) -> list[Any]:
    """Source and maker of those of ``guards`` that look one of the hooks' ``numbers`` up in a dict of the process."""
    dicts = [getattr(_MODULES, name) for name in _OF_PROCESS]
    on_numbers = (guard for guard in guards if getattr(guard.create_fn, "keywords", {}).get("key") in numbers)
    found = ((guard.originating_source, guard.create_fn) for guard in on_numbers)
    return [(source, make) for source, make in found if any(resolve(source) is each for each in dicts)]


def with_number(source: Source, make: Any, numbers: dict[int, int]) -> Any:
    """The maker of the guard that ``make`` makes in a call whose hooks have other ``numbers``: by the earlier ones."""
    if not numbers or type(make) is not functools.partial or make.keywords.get("key") not in numbers:
        return make
    name = getattr(source, "member", None) or getattr(source, "global_name", None)
    if name not in (*_SAY_MORE, *_OF_PROCESS):
        return make
    return functools.partial(make.func, *make.args, **{**make.keywords, "key": numbers[make.keywords["key"]]})
