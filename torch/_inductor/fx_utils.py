"""Overlay of torch._inductor.fx_utils: looks up and compares the metadata of region calls in fewer steps.

Inductor updates the metadata of a graph after each group of passes, and compares all operands of a call with the inputs
of its body. Calls of one body with other lifted objects have the same metadata.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._higher_order_ops.metadata_keys import lifted_class, number
from torch._higher_order_ops.region_metadata import is_static
from torch._inductor.fx_utils import get_fake
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils._release import RELEASE

from torch_regions.overlay import replaces, stock


@replaces("_is_fake_tensor_same")
def _is_fake_tensor_same(
    new: Any,
    old: Any,
    existing_storages: Any,
    *,
    check_strides: bool = True,
    check_storage: bool = True,
    node: Any = None,
    recursive_ids: Any = None,
) -> bool:
    if new is old:
        # The results of the body have not changed, so its calls are not run again. With ``check_storage``, stock would
        # not even take a tensor as the same as itself.
        return True
    kind = lifted_class(new)
    if kind is not None:
        return kind is lifted_class(old)
    compare = stock("torch._inductor.fx_utils:_is_fake_tensor_same")
    if not check_storage and _is_plain(new) and _is_plain(old):
        alike: bool = new.shape == old.shape and new.device == old.device
        if RELEASE >= (2, 15):  # before, stock ignores the dtype
            alike = alike and new.dtype == old.dtype
        return alike and (not check_strides or new.stride() == old.stride())
    return compare(
        new,
        old,
        existing_storages,
        recursive_ids=recursive_ids,
        check_storage=check_storage,
        check_strides=check_strides,
        node=node,
    )


def _is_plain(value: Any) -> bool:
    return type(value) is FakeTensor and value.layout is torch.strided and is_static(value)


# Types that hold no nodes.
_LEAVES = frozenset({int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout})


def _in_sequence(values: Any, gm: GraphModule | None) -> list[Any] | None:
    """``values``, also nested, with nodes replaced by their values; None if they hold anything but plain leaves."""
    found: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is Node:
            found.append(get_fake(value, gm))
        elif kind in _LEAVES:
            found.append(value)
        elif kind is tuple or kind is immutable_list:
            inner = _in_sequence(value, gm)
            if inner is None:
                return None
            found.append(kind(inner))
        else:
            return None
    return found


class _Results(tuple[Any, ...]):
    """The results of a call, for a getitem of one of them. Pytrees treat this as a leaf and skip the other results."""

    __slots__ = ()


@replaces
def get_fake_args_kwargs(x: Node, gm: GraphModule | None = None) -> tuple[bool, tuple[Any, ...], dict[str, Any]]:
    found = None if x.kwargs else _in_sequence(x.args, gm)
    if found is not None and x.target is operator.getitem and [*map(type, found[1:])] == [int]:
        found[0] = _Results(found[0]) if type(found[0]) in (tuple, list) else found[0]
    if found is None:
        return stock("torch._inductor.fx_utils:get_fake_args_kwargs")(x, gm)  # type: ignore[no-any-return]
    # A node without metadata becomes None, as in stock.
    return True, tuple(found), immutable_dict()


@replaces
def _extract_subgraphs_and_args(node: Node, valid_subgraphs: Any, *args: Any, **kwargs: Any) -> Any:
    is_call = node.target is torch.ops.higher_order.invoke_subgraph
    extract = stock("torch._inductor.fx_utils:_extract_subgraphs_and_args")
    for body, operands in extract(node, valid_subgraphs, *args, **kwargs):
        # Stock fails if two calls of a body have different strides. The body stays as it is: it is compiled for its own
        # strides, and each call gives its operands these strides.
        yield body, None if is_call and operands is not None and not _has_strides(body, operands) else operands


def _has_strides(body: GraphModule, operands: tuple[Any, ...]) -> bool:
    taken = [get_fake(node, body) for node in body.graph.find_nodes(op="placeholder")]
    pairs = [(a, b) for a, b in zip(operands, taken) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)]
    return all(a.layout != torch.strided or b.layout != torch.strided or _numbers(a) == _numbers(b) for a, b in pairs)


def _numbers(value: torch.Tensor) -> tuple[Any, ...]:
    """The strides, and sizes that are symbols: a call may have other symbols than its body."""
    sizes = value.stride() if is_static(value) else (*value.shape, *value.stride())
    return tuple(map(number, sizes))
