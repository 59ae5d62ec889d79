"""What tracing may see of a value without making a guard that says so."""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import torch
from torch._dynamo.region_arguments import CannotReuse
from torch._dynamo.region_identity import Unkeyable, constant_key, lifted_key, tensor_key
from torch._dynamo.region_outcomes import ReuseMissReason
from torch._dynamo.region_transport import Resolver
from torch._dynamo.source import AttrSource, ClosureSource, GetItemSource
from torch._guards import Source


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_forward_hooks_always_called",
)


def value_key(value: Any) -> Hashable:
    try:
        return tensor_key(value) if isinstance(value, torch.Tensor) else lifted_key(value) or constant_key(value)
    except Unkeyable as e:
        raise CannotReuse(ReuseMissReason.UNKNOWN_CAPTURE, str(e)) from None


def tensor_state(tracker: Any) -> Hashable:
    """What may be read of a tensor that is looked at, whether or not it becomes an operand."""
    value = tracker.proxy.node.meta.get("example_value")
    return tracker.class_type, value_key(value), value.is_leaf, value.grad_fn is None


def exact_key(value: Any) -> Hashable:
    """Key of a plain constant, by type and bits; None for anything else."""
    if type(value) in (bool, int, float, complex, str, bytes, type(None)):
        return constant_key(value)
    return None


def appearance(value: Any) -> Hashable:
    """What tracing may see of an object without a guard: class, own attributes, keys, hooks, absent parameters."""
    own = getattr(value, "__dict__", None)
    names = tuple(own) if own is not None and not isinstance(value, type) else None
    if isinstance(value, (dict, set, frozenset)):
        # In their order, of which there is no guard; a key that is no constant is the object it is.
        return type(value), names, tuple(exact_key(key) or id(key) for key in list(value))
    if not isinstance(value, torch.nn.Module):
        return type(value), names
    hooks = tuple(tuple(map(id, getattr(value, name, {}).values())) for name in _HOOKS)
    parts = (value._parameters, value._buffers, value._modules)
    return type(value), names, hooks, tuple(tuple((k, v is None) for k, v in part.items()) for part in parts)


def cells_of(sources: Iterable[Source], resolve: Resolver) -> Iterator[Source]:
    """Sources of the closure cells of the functions at ``sources``.

    Dynamo asks for none of them when it knows the cell by another function.
    """
    for source in sources:
        try:
            value = resolve(source)
        except Exception:
            continue  # nothing there when the frame begins
        if isinstance(value, types.MethodType):
            value, source = value.__func__, AttrSource(source, "__func__")
        if isinstance(value, types.FunctionType):
            yield from (GetItemSource(ClosureSource(source), i) for i in range(len(value.__closure__ or ())))
