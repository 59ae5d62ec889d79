"""Reads the program's objects without running the program's code.

A decision about reuse must not be observable: a ``__getattr__`` that counts, a ``__len__`` that prints, or a property
must run as often as it runs without regions.  So these functions read objects through the methods of built-in classes.
Where only the program's code could answer, they raise ``RunsCode``, and the call is traced.
"""

from __future__ import annotations

import abc
import collections
import gc
import types
from collections.abc import Hashable, Iterable, Iterator, Set
from typing import Any

import torch
from torch._dynamo.regions.keys import constant_key
from torch.fx.dtensor_facts import dtensor_properties


MISSING: Any = object()
# Types of constants that are compared by value. Every other object is compared by identity.
EXACT = (bool, int, float, complex, str, bytes, type(None))
# By id, because a comparison of classes may run the code of a metaclass.
_IDS_OF_EXACT = frozenset(map(id, EXACT))


class RunsCode(Exception):
    """Only the program's code could answer."""


def is_exact(value: Any) -> bool:
    """Whether ``value`` is a plain constant, which is compared by value."""
    return id(type(value)) in _IDS_OF_EXACT


def exact_key(value: Any) -> Hashable:
    """Key of a plain constant, by type and bits; None for anything else."""
    return constant_key(value) if is_exact(value) else None


def holds_nan(value: Any) -> bool:
    """Whether ``value`` is, or holds in tuples and lists, a number that equals nothing."""
    kind = type(value)
    if kind is float or kind is complex:
        return bool(value != value)
    return (kind is tuple or kind is list or kind is torch.Size) and any(map(holds_nan, value))


def is_a(value: Any, kind: Any) -> bool:
    """Like ``isinstance``, but does not read the object's ``__class__``, which may run code."""
    return issubclass(type(value), kind)


# What a class finds an object's ``__dict__`` by, if it is not the program's.
_FINDS_DICT = (types.GetSetDescriptorType, types.MemberDescriptorType)


def own_attributes(value: Any) -> Any:
    """The ``__dict__`` of ``value``; None if it has none, or if its class has another one there."""
    return None if has_own_dict(type(value)) else own_dict(value)


def own_dict(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def has_own_dict(kind: Any) -> bool:
    """Whether a class of the program says what the ``__dict__`` of its instances is."""
    found = find_in_class(kind, "__dict__")
    return found is not MISSING and type(found) not in _FINDS_DICT


def of_class(kind: Any, name: str) -> Any:
    """An attribute of a class as ``type`` finds it, without the ``__getattribute__`` of a metaclass."""
    return type.__getattribute__(kind, name)


# The namespace of a class; the descriptor itself, because it is read often.
namespace_of: Any = type.__dict__["__dict__"].__get__


def find_in_class(kind: Any, name: str) -> Any:
    """The raw entry ``name`` of a class or the first of its bases that has it; ``MISSING`` if none does."""
    for base in of_class(kind, "__mro__"):
        found = namespace_of(base).get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING


def is_of_program(kind: Any, name: str) -> bool:
    """Whether ``name`` is a Python function in a class, other than that of ``torch.nn.Module``."""
    found = find_in_class(kind, name)
    return isinstance(found, types.FunctionType) and found is not torch.nn.Module.__dict__.get(name)


def _runs_code(found: Any) -> bool:
    """Whether reading an attribute that a class binds to ``found``, a property or descriptor, runs Python code.

    Torch's own properties of DTensors do not count: they read its spec, which is guarded.
    """
    kind = type(found)
    if kind is property and any(found is each for each in dtensor_properties()):
        return False
    return kind is property or is_of_program(kind, "__get__") or issubclass(kind, property)


def _checked(found: Any, name: str) -> Any:
    if found is not MISSING and _runs_code(found):
        raise RunsCode(f"{name} is found by code of the program")
    return found


def checks_by_code(kind: Any) -> bool:
    """Whether ``isinstance`` runs the program's ``__instancecheck__`` for a class, which may read more than the type.

    Torch's own, of Parameter and Buffer, do not count: each module runs them, but they only read the object's
    attributes, and those are compared.
    """
    found = find_in_class(type(kind), "__instancecheck__") if is_a(kind, type) else MISSING
    if not isinstance(found, types.FunctionType) or found is abc.ABCMeta.__instancecheck__:
        return False
    return found.__module__.partition(".")[0] != "torch"


def _builtin_getattribute(kind: Any) -> Any:
    """The ``__getattribute__`` that a class inherits from a built-in class, below the program's own."""
    for base in type.__getattribute__(kind, "__mro__"):
        found = base.__dict__.get("__getattribute__")
        if found is not None and not isinstance(found, types.FunctionType):
            return found
    return object.__getattribute__


def _built_in_attribute(value: Any, name: str) -> Any:
    """The attribute as the built-in base class finds it, without the program's code."""
    kind = type(value)
    if kind is not torch.Tensor and issubclass(kind, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return _builtin_getattribute(kind)(value, name)
    if is_of_program(kind, "__getattribute__"):
        return _builtin_getattribute(kind)(value, name)
    return getattr(value, name)


def attribute_of(value: Any, name: str) -> Any:
    """Like ``getattr``, but bypasses a ``__getattribute__`` of the program.

    Dynamo traces such a ``__getattribute__``, and records each of its reads separately.  The attribute's source stands
    for what the built-in class then finds.

    Raises AttributeError without such an attribute, and RunsCode if the program's code would run.
    """
    kind = type(value)
    if issubclass(kind, type):
        if is_of_program(kind, "__getattribute__"):
            raise RunsCode(f"{kind.__name__} has a __getattribute__ of its own")
        _checked(find_in_class(kind, name), name)
        if _checked(find_in_class(value, name), name) is MISSING and is_of_program(kind, "__getattr__"):
            raise RunsCode(f"{kind.__name__} has a __getattr__ of its own")
        return getattr(value, name)
    found = find_in_class(kind, name)
    if found is not MISSING and find_in_class(type(found), "__set__") is not MISSING:
        _checked(found, name)
        return _built_in_attribute(value, name)  # a data descriptor comes before the object's own attributes
    own = own_attributes(value)
    if own is not None and name in own:
        return own[name]
    if is_a(value, torch.nn.Module) and own is not None:
        for part in ("_parameters", "_buffers", "_modules"):
            if name in (held := own.get(part, ())):
                return held[name]
    if _checked(found, name) is MISSING and (is_of_program(kind, "__getattr__") or _is_lazy(value, own)):
        raise RunsCode(f"{kind.__name__} has a __getattr__ of its own")
    return _built_in_attribute(value, name)


def _is_lazy(value: Any, own: Any) -> bool:
    """Whether ``value`` is a module of Python with a ``__getattr__``: see PEP 562."""
    return is_a(value, types.ModuleType) and "__getattr__" in (own or ())


def has_attribute(value: Any, name: str) -> Hashable:
    """Whether ``value`` has an attribute; if the program's code decides, which code of its class does.

    Dynamo traces that code and records each of its reads: if the reads and the code are the same, so is the answer.
    Raises RunsCode for an attribute of a class that its metaclass finds.
    """
    kind = type(value)
    try:
        attribute_of(value, name)
        present = True
    except AttributeError:
        present = False
    except RunsCode:
        if issubclass(kind, type):
            raise
        own = own_attributes(value)
        return name in own if own is not None else None, id(find_in_class(kind, name)), *_lookups(kind)
    return (present, *_lookups(kind)) if is_of_program(kind, "__getattribute__") else present


def _lookups(kind: Any) -> tuple[int, ...]:
    return tuple(id(find_in_class(kind, name)) for name in ("__getattribute__", "__getattr__"))


def _are(values: Iterable[Any], ids: Set[int]) -> bool:
    """Whether the class of each value is among those with these ids.  Compares no class: see ``_IDS_OF_EXACT``."""
    return ids.issuperset(map(id, map(type, values)))


def _has_own_order(key: Any) -> bool:
    """Whether a dict or set may have to run code of the program, ``__hash__`` or ``__eq__``, to find ``key``."""
    kind = type(key)
    if id(kind) in _IDS_OF_EXACT:
        return False
    for base in (tuple, frozenset):
        if issubclass(kind, base) and any(map(_has_own_order, base.__iter__(key))):
            return True
    return is_of_program(kind, "__hash__") or is_of_program(kind, "__eq__")


def _are_plain(keys: Iterable[Any]) -> bool:
    """Whether none of ``keys``, of a dict or set, has an order of its own."""
    return _are(keys, _IDS_OF_EXACT) or not any(map(_has_own_order, keys))


def _check_plain(keys: Iterable[Any]) -> None:
    if not _are_plain(keys):
        raise RunsCode("a key of the program's may compare itself")


def _behind_proxy(value: Any) -> Any:
    """The dict that a mapping proxy shows; ``value`` if it is none.  Raises RunsCode for a mapping of another class."""
    if type(value) is not types.MappingProxyType:
        return value
    (held,) = gc.get_referents(value)
    if type(held) is not dict:
        raise RunsCode(f"{type(held).__name__} is no dict")
    return held


def _element(held: Any, key: Any) -> Any:
    """What a dict holds at ``key``; ``MISSING`` if it holds nothing there."""
    keys = dict.keys(held)
    if (id(type(key)) in _IDS_OF_EXACT or not _has_own_order(key)) and _are_plain(keys):
        return dict.get(held, key, MISSING)
    for each, found in dict.items(held):
        if each is key or (is_exact(key) and type(each) is type(key) and each == key):
            return found
    raise RunsCode("a key of the program's may compare itself")


def item_of(value: Any, key: Any) -> Any:
    """What ``value`` holds at ``key``, without changing it: a defaultdict's own lookup would add a missing key."""
    if type(value) is not dict:  # most are
        value = _behind_proxy(value)
    if is_a(value, dict):
        found = _element(value, key)
        if found is MISSING:
            raise KeyError(key)
        return found
    for kind in (list, tuple, collections.deque):
        if is_a(value, kind):
            return kind.__getitem__(value, key)
    if is_of_program(type(value), "__getitem__"):
        raise RunsCode(f"{type(value).__name__} has a __getitem__ of its own")
    return value[key]


def keys_of(value: Any) -> tuple[Any, ...]:
    """The keys of a dict, or the elements of a set, in order.  Raises RunsCode if the program's code would run."""
    value = _behind_proxy(value)
    if is_a(value, collections.OrderedDict):
        # An OrderedDict has an order of its own, besides the dict's order of insertion. It looks up each key.
        _check_plain(dict.keys(value))
        return (*dict.keys(value), *collections.OrderedDict.keys(value))
    if is_a(value, dict):
        return tuple(dict.keys(value))
    kind: Any = set if is_a(value, set) else frozenset
    return tuple(kind.__iter__(value))


def length_of(value: Any) -> int:
    """Like ``len``.  Raises RunsCode if the program's code would run."""
    value = _behind_proxy(value)
    for kind in (dict, list, tuple, set, frozenset, collections.deque):
        if is_a(value, kind):
            return kind.__len__(value)  # type: ignore[arg-type]
    if is_of_program(type(value), "__len__"):
        raise RunsCode(f"{type(value).__name__} has a __len__ of its own")
    return len(value)


def contains(value: Any, key: Any) -> bool:
    """Whether a dict or a set has ``key``, a plain constant."""
    if not is_exact(key):
        raise RunsCode("a key of the program's may compare itself")
    value = _behind_proxy(value)
    for kind in (dict, set, frozenset):
        if is_a(value, kind):
            _check_plain(kind.__iter__(value))  # type: ignore[arg-type]
            return kind.__contains__(value, key)  # type: ignore[arg-type]
    raise RunsCode(f"{type(value).__name__} is no dict and no set")


def base_constant(value: Any) -> Hashable:
    """Class and plain value of an instance of a subclass of int, float, str or bytes."""
    for kind, plain in ((int, int.__int__), (float, float.__float__), (str, str.__str__)):
        if is_a(value, kind):
            return id(type(value)), constant_key(plain(value))  # type: ignore[operator]
    if is_a(value, bytes):
        return id(type(value)), bytes.__getitem__(value, slice(None))
    raise RunsCode(f"{type(value).__name__} is no constant")


_ID_OF_STR = frozenset({id(str)})


def keys_key(keys: Iterable[Any]) -> Hashable:
    """Key of a container's keys: strings by value, other constants by type and value, anything else by identity."""
    found = tuple(keys)
    return found if _are(found, _ID_OF_STR) else tuple(exact_key(key) or id(key) for key in found)


def is_empty_ordered_dict(value: Any) -> bool:
    """Whether ``value`` is exactly an ``OrderedDict``, without keys and attributes."""
    return type(value) is collections.OrderedDict and not value and not value.__dict__


def modules_of(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The direct children of ``module``.  Calls none of its methods, which may be the program's."""
    return (m for _, m in parts_of(own_attributes(module) or {}, "_modules") if m is not None)


def parts_of(own: dict[str, Any], name: str) -> list[tuple[str, Any]]:
    """Names and values in the dict that a module with the attributes ``own`` has at ``name``."""
    held: Any = own.get(name)
    return list(dict.items(held)) if issubclass(type(held), dict) else []
