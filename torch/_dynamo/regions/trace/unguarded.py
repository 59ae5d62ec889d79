"""What tracing may read of an object without a guard.

Note [An object without sources is the same object]
Reuse compares what guards say of an object, what this file says of it, and which sources lead to one object.  Most
objects are parts that have sources of their own: elements, attributes, cells, a method's function.  An instance of a
class written in C may have a state to which no source leads: the operator of ``torch.Tensor.sin``, the days of a
``timedelta``, the bytes of a ``bytearray``.  Dynamo makes no guard on many of them, and computes with the object itself
(``a < b``, ``fn(x)``).  So such an object must be the same one in both calls, or a constant of the same value.
``_OF_PARTS`` names the classes of which sources, guards and this file tell all.
"""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Hashable
from typing import Any

import torch
from torch._dynamo import config
from torch._dynamo.regions.keys import Same, Unkeyable, constant_key
from torch._dynamo.regions.trace.function_code import code_of
from torch._dynamo.regions.trace.module_hooks import is_dict_of_hooks, is_filled, values_of
from torch._dynamo.regions.trace.objects import (
    base_constant,
    exact_key,
    keys_key,
    keys_of,
    namespace_of,
    of_class,
    own_dict,
)
from torch._dynamo.utils import np
from torch.fx.dtensor_facts import Mesh, is_mesh


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_forward_hooks_always_called",
)
_PARTS = ("_parameters", "_buffers", "_modules")
# What Dynamo reads of a cached function without a guard.
_NAMED = ("__name__", "__qualname__", "__doc__", "__module__")
# Py_TPFLAGS_HEAPTYPE of Python's object.h: a class statement makes such classes, and some modules in C.
_HEAP_TYPE = 1 << 9
# By id, because a comparison of classes may run the code of a metaclass.
_OF_CONSTANTS = frozenset(map(id, (int, float, str, bytes)))
_BOUND = frozenset(map(id, (types.BuiltinFunctionType, types.MethodWrapperType)))
_OF_PARTS = frozenset(
    id(kind)
    for kind in (
        *(object, list, tuple, collections.deque, types.MappingProxyType, types.SimpleNamespace),
        *(types.CellType, functools.partial, weakref.ref),
        *((np.ndarray, np.generic) if np is not None else ()),
    )
)


def unguarded_state(value: Any) -> Hashable:
    """What tracing may read of an object without a guard: class, own attributes, keys, hooks, absent parameters.

    The result holds ids, so it is valid only while ``value`` is alive.  Raises RunsCode if only the program's code
    could tell, but for a class that ``has_own_dict``: its code runs.
    """
    kind = type(value)
    if issubclass(kind, (type, types.ModuleType)):
        return id(kind), Same(value)
    if kind is dict:  # most are
        return id(kind), None, keys_key(value)
    if is_mesh(value):
        return id(kind), Mesh(value)  # torch's guard does not compare the groups
    own = own_dict(value)
    names = tuple(own) if own is not None else None
    if names and issubclass(kind, torch.Tensor):
        names = tuple(name for name in names if not name.startswith("_dynamo_"))  # Dynamo adds these while it traces
    if issubclass(kind, (dict, set, frozenset)):
        # In order, since no guard compares the order; a key that is no constant is compared by identity.
        return id(kind), names, keys_key(keys_of(value)), _slots_set(value, kind)
    if kind is functools._lru_cache_wrapper:
        return id(kind), names, tuple(exact_key(name) or id(name) for name in map(own.get, _NAMED))
    if not issubclass(kind, torch.nn.Module) or own is None:
        return id(kind), names, _without_sources(value, kind)
    held = [(name, own[name]) for name in _HOOKS if is_filled(own.get(name))]
    hooks = tuple(
        # Note [Module hooks by their code]
        (name, *map(code_of if is_dict_of_hooks(value, name) else id, values_of(of_name)))
        for name, of_name in held
    )
    parts = [(name, own[name]) for name in _PARTS if is_filled(own.get(name))]
    absent = [(name, n) for n, (_, of_name) in enumerate(parts) for name, part in dict.items(of_name) if part is None]
    keys = tuple([(name, keys_key(dict.keys(of_name))) for name, of_name in parts])
    return id(kind), names, hooks, keys, _slots_set(value, kind), *absent


def _without_sources(value: Any, kind: Any) -> Hashable:
    """What no source leads to: see the Note above.  Also the slots of an object that are set, as it has no dict."""
    if kind is types.FunctionType:
        return _of_function(value)
    if kind is types.MethodType:
        return _of_method(value)
    if id(kind) in _OF_PARTS:
        return None
    if id(kind) in _BOUND and type(value.__self__) is not types.ModuleType:
        # The program may get another such object each time.
        return value.__name__, exact_key(value.__self__) or Same(value.__self__)
    written_in_c, slots = _class_in_c(kind), _slots_set(value, kind)
    if id(written_in_c) in _OF_PARTS or issubclass(kind, torch.Tensor):
        return slots
    if id(written_in_c) in _OF_CONSTANTS:
        # Dynamo takes it for a constant, and computes with it by methods of the program's, which may read attributes.
        return Same(value) if slots or own_dict(value) else base_constant(value)
    try:
        return slots, constant_key(value)
    except Unkeyable:
        return Same(value)


def _of_function(function: types.FunctionType) -> Hashable:
    """What a text of a function may have: names, and attributes that are constants.  Dynamo guards the code only."""
    named = function.__name__, function.__qualname__
    attributes = tuple([(name, exact_key(each)) for name, each in function.__dict__.items()])
    return named, attributes, _unguarded_defaults(function) if config.skip_guards_on_constant_func_defaults else None


def _class_in_c(kind: Any) -> Any:
    """The nearest class of ``kind`` that no class statement has made: it decides what its instances hold."""
    for each in of_class(kind, "__mro__"):
        made = namespace_of(each).get("__new__")
        if not of_class(each, "__flags__") & _HEAP_TYPE or type(made) is types.BuiltinFunctionType:
            return each
    return object


def _slots_set(value: Any, kind: Any) -> tuple[str, ...]:
    """Names of the slots of ``value`` that are set."""
    found = []
    for each in of_class(kind, "__mro__"):
        own = namespace_of(each)
        for name, slot in own.items() if "__slots__" in own else ():
            if type(slot) is types.MemberDescriptorType and _is_set(slot, value, kind):
                found.append(name)
    return tuple(found)


def _is_set(slot: types.MemberDescriptorType, value: Any, kind: Any) -> bool:
    try:
        slot.__get__(value, kind)
    except AttributeError:
        return False
    return True


def _of_method(method: types.MethodType) -> Hashable:
    """Attributes that a bound method has of its function, and the class that a class method is bound to."""
    function, bound = method.__func__, method.__self__
    own = _of_function(function) if type(function) is types.FunctionType else Same(function)
    return own, Same(bound) if issubclass(type(bound), type) else None


def _unguarded_defaults(function: types.FunctionType) -> Hashable:
    """Defaults that are constants: under an option of Dynamo's, it reads them without a guard."""
    named = (function.__kwdefaults__ or {}).items()
    return tuple(map(exact_key, function.__defaults__ or ())), tuple((name, exact_key(value)) for name, value in named)
