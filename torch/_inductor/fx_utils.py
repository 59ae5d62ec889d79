"""Overlay of torch._inductor.fx_utils: calls of one body with other lifted objects are calls with the same metadata."""

from __future__ import annotations

from typing import Any

from torch._higher_order_ops.region_metadata import lifted_class

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
    kind = lifted_class(new)
    if kind is not None:
        return kind is lifted_class(old)
    compare = stock("torch._inductor.fx_utils:_is_fake_tensor_same")
    what = {"check_strides": check_strides, "check_storage": check_storage}
    return compare(new, old, existing_storages, node=node, recursive_ids=recursive_ids, **what)
