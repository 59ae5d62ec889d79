"""The metadata of values as keys, and whether two values, or the operands of two calls, have the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import sympy
import torch
from torch._library.fake_class_registry import FakeScriptObject
from torch._library.opaque_object import should_hoist
from torch._subclasses.fake_tensor import FakeTensor, extract_tensor_metadata
from torch._subclasses.functional_tensor import FunctionalTensor


# Bytes: Inductor compiles other kernels for inputs that do not begin at a multiple of it (torch._inductor.utils).
_ALIGNMENT = 16


def number(value: Any) -> Hashable:
    """A size or stride as a comparable value: within one compile, equal expressions are the same number."""
    return value.node.expr if isinstance(value, torch.SymInt) else value


def looks(value: Any, *, in_storage: bool = True) -> Hashable:
    """All metadata of a fake tensor that an operator can observe; None for anything else.

    ``in_storage``: whether an operator sees where the tensor begins in its storage, and how large this is.
    """
    if type(value) is not FakeTensor or value.layout is not torch.strided or value.is_quantized:
        return None
    shape: Any = value.shape
    stride: Any = value.stride()
    if value._has_symbolic_sizes_strides:
        shape, stride = tuple(map(number, shape)), tuple(map(number, stride))
    return (
        shape,
        stride,
        # The storage of a view may be larger than its sizes say.
        (number(value.storage_offset()), _bytes(value)) if in_storage else None,
        value.dtype,
        value.device,
        value.is_conj(),
        value.is_neg(),
    )


def _bytes(value: torch.Tensor) -> Hashable:
    size = number(value.untyped_storage().nbytes())
    return sympy.expand(size) if isinstance(size, sympy.Expr) else size  # equal sizes may be a product or a sum


def alike(one: Any, other: Any, symbols: dict[Any, Any] | None = None, *, in_storage: bool = True) -> bool:
    """Whether two values have the same metadata, if ``symbols`` replaces symbols of the first."""
    if isinstance(one, (int, torch.SymInt)) and isinstance(other, (int, torch.SymInt)):
        return renamed_key(number(one), symbols) == number(other)
    if (kind := lifted_class(one)) is not None:
        return kind is lifted_class(other)
    key = looks(one, in_storage=in_storage)
    return key is not None and renamed_key(key, symbols) == looks(other, in_storage=in_storage)


def renamed_key(key: Any, symbols: dict[Any, Any] | None) -> Any:
    """A key of metadata with ``symbols`` replaced in its expressions."""
    if not symbols:
        return key
    if isinstance(key, sympy.Basic):
        return key.xreplace(symbols)
    return tuple(renamed_key(each, symbols) for each in key) if type(key) is tuple else key


def renaming_of(
    inputs: Sequence[Any], operands: Sequence[Any], known: Iterable[dict[Any, Any]], *, in_storage: bool = True
) -> dict[Any, Any] | None:
    """The symbols of ``operands`` in the place of those of a body's ``inputs``; None if the metadata differs otherwise.

    ``known``: which symbols a call of the frame may have in the place of a body's. ``in_storage``: as for ``looks``.
    See Note [A body serves sizes of several names] in torch/_dynamo/regions/outline/renaming.py.
    """
    if len(inputs) != len(operands):
        return None
    if all(alike(one, other, in_storage=in_storage) for one, other in zip(inputs, operands)):
        return {}
    symbols: dict[Any, Any] = {}
    for one, other in zip(inputs, operands):
        if isinstance(one, torch.SymInt):
            symbols.setdefault(number(one), number(other))
        elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.dim() == other.dim():
            symbols.update(zip(map(number, one.shape), map(number, other.shape)))
    symbols = {old: new for old, new in symbols.items() if isinstance(old, sympy.Symbol) and old != new}
    if not any(symbols.items() <= each.items() for each in known):
        return None
    same = all(alike(one, other, symbols, in_storage=in_storage) for one, other in zip(inputs, operands))
    return symbols if same else None


def beyond_alignment(offset: Any, tensor: torch.Tensor) -> Any:
    """How many bytes an ``offset`` in the storage of ``tensor`` is from an aligned address; 0 on a CPU.

    ``offset`` may be an expression.
    """
    return 0 if tensor.device.type == "cpu" else offset * tensor.element_size() % _ALIGNMENT


def key_of_tangents(tangents: Iterable[Any]) -> Hashable:
    """The metadata of a call's tangents, for a backward that does not see where they begin in their storages.

    None if a tangent is of a subclass or has symbolic sizes: stock's key has a subclass's, and renames symbols.
    See Note [A body does not see storage offsets] in torch/fx/offset_facts.py.
    """
    first: dict[int, int] = {}  # tangents that are one tensor are one value in the backward
    key: list[Hashable] = []
    for index, tangent in enumerate(tangents):
        if tangent is None:
            continue
        if type(tangent) not in (FakeTensor, FunctionalTensor) or tangent.layout is not torch.strided:
            return None
        metadata = extract_tensor_metadata(tangent)
        offset = metadata.storage_offset
        if any(isinstance(n, torch.SymInt) for n in (*metadata.shape, *metadata.stride, offset)):
            return None
        elsewhere = dataclasses.replace(metadata, storage_offset=beyond_alignment(offset, tangent), storage_bytes=None)
        fields = (getattr(elsewhere, field.name) for field in dataclasses.fields(elsewhere))
        key.append((first.setdefault(id(tangent), index), *fields))
    return tuple(key)


def lifted_class(value: Any) -> type | None:
    """The class of an object that a graph takes as an input because of its class; None for anything else."""
    kind = type(value.real_obj) if type(value) is FakeScriptObject else type(value)
    return kind if should_hoist(kind) else None
