"""Facts about DTensors, their meshes, and the calls by which a program makes, redistributes and takes apart DTensors.

They are functions and methods of DTensor, not operators: AOTAutograd finds the collectives in them by tracing.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.fx
from torch._library.fake_class_registry import FakeScriptObject, maybe_unwrap_fake_script_object


Node = torch.fx.Node

# Placements that are what they say. That of an embedding's rows (``_MaskPartial``) also holds a mask of the last call.
_PLACEMENTS = ("Partial", "Replicate", "Shard", "_StridedShard")
_METHODS = frozenset({"full_tensor", "redistribute", "to_local"})


class Mesh:
    """A device mesh, equal to another with the same ranks and process groups.

    Meshes that torch calls equal may have different groups, and ``mesh["tp"]`` is a new mesh of the same groups each
    time.
    """

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        """``value``: the mesh, as it is or as tracing wraps it."""
        self.value = value
        root = getattr(self.real, "_root_mesh", None) or self.real
        self._key = (self.real, tuple(self.real._dim_group_names), id(root))

    @property
    def real(self) -> Any:
        return maybe_unwrap_fake_script_object(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"{self.real} of {self._key[1:]}"


def make_dtensor(local: torch.Tensor, mesh: Any, context: Any, size: torch.Size, stride: Any) -> torch.Tensor:
    """The DTensor of ``local``. ``context``: what ``__tensor_flatten__`` says of it besides."""
    inner = {"_local_tensor": local, "device_mesh": mesh}
    made: torch.Tensor = dtensor_class().__tensor_unflatten__(inner, context, size, stride)
    return made


def with_local(value: Any, local: torch.Tensor) -> torch.Tensor:
    """A DTensor like ``value``, a DTensor, with another local tensor."""
    _, context = value.__tensor_flatten__()
    return make_dtensor(local, value.device_mesh, context, value.size(), value.stride())


def is_mesh(value: Any) -> bool:
    """Whether a value is a device mesh that has process groups, maybe wrapped for tracing."""
    module = sys.modules.get("torch.distributed.device_mesh")
    kind = type(value)
    if module is None or kind not in (FakeScriptObject, module.DeviceMesh):
        return False
    real = maybe_unwrap_fake_script_object(value)
    return type(real) is module.DeviceMesh and hasattr(real, "_dim_group_names")


def dtensor_class() -> Any:
    """The class DTensor; None if the program has imported none."""
    module = sys.modules.get("torch.distributed.tensor")
    return None if module is None else getattr(module, "DTensor", None)


def dtensor_properties() -> list[Any]:
    """The properties of DTensor that tell its mesh and placements."""
    kind = dtensor_class()
    return [] if kind is None else [kind.__dict__[name] for name in ("device_mesh", "placements")]


def is_dtensor(value: Any) -> bool:
    """Whether a value is a DTensor, and of no class derived from it."""
    return type(value) is dtensor_class()  # isinstance would run the __getattribute__ of a program's object


def changes_layout(node: Node) -> bool:
    """Whether a node makes a DTensor of a local tensor, redistributes one, or takes one apart, and does nothing else.

    ``from_local`` with ``run_check`` also compares the ranks' tensors, and without a mesh it asks for the present one.
    """
    if node.op == "call_method":
        owner = node.args[0] if node.args else None
        return node.target in _METHODS and isinstance(owner, Node) and is_dtensor(owner.meta.get("example_value"))
    kind = dtensor_class()
    if kind is None or node.target is not kind.from_local:
        return False
    mesh = node.args[1] if len(node.args) > 1 else node.kwargs.get("device_mesh")
    return isinstance(mesh, Node) and node.kwargs.get("run_check", False) is False


def is_placement(value: Any) -> bool:
    """Whether a value is a placement of a DTensor that equals another iff they mean the same."""
    kind = type(value)
    return kind.__module__ == "torch.distributed.tensor.placement_types" and kind.__name__ in _PLACEMENTS


def has_dtensor(node: Node) -> bool:
    """Whether a node takes or makes a DTensor."""
    return any(is_dtensor(each.meta.get("example_value")) for each in (node, *node.all_input_nodes))
