"""What a program leaves behind, as values that two runs can be compared by; none of the user's code runs for it."""

from __future__ import annotations

import collections
import types
from typing import Any

import torch


_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
# Numbers of hooks come from a counter of the process.
_NUMBERED = "_hooks"
# What torch.compile writes to a module.
_OF_TORCH = ("_is_torch_compile", "_compiled_call_impl")


class Snapshot:
    """Renders objects; two that are one object get one number, so aliases are part of it."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return (kind.__name__, repr(value))
        if (number := self._numbers.get(id(value))) is not None:
            return ("again", number)
        number = self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        return (kind.__name__, number, *self._parts(value))

    def _parts(self, value: Any) -> list[Any]:
        parts: list[Any] = []
        if isinstance(value, torch.Tensor):
            return [tensor_parts(value), self(value.grad) if value.is_leaf else None]
        if isinstance(value, dict):
            parts = [(self(k), self(v)) for k, v in dict.items(value)]
        elif isinstance(value, collections.deque):
            parts = [self(v) for v in collections.deque.__iter__(value)]
        elif isinstance(value, (list, tuple)):
            parts = [self(v) for v in (list if isinstance(value, list) else tuple).__iter__(value)]
        elif isinstance(value, (set, frozenset)):
            parts = sorted(map(repr, value))
        elif isinstance(value, types.FunctionType):
            return [value.__name__, self(value.__defaults__), *(self(c.cell_contents) for c in value.__closure__ or ())]
        elif isinstance(value, type):
            return [value.__name__, *(repr(vars(value)[k]) for k in ("k", "shared_k") if k in vars(value))]
        elif isinstance(value, types.ModuleType):
            return [repr(vars(value).get("k"))]
        kind = type(value)
        try:
            own = object.__getattribute__(value, "__dict__")
        except AttributeError:
            own = None
        for name, item in (own or {}).items():
            if name.endswith((_NUMBERED, "_hooks_with_kwargs")):
                parts.append((name, len(item) if isinstance(item, dict) else self(item)))
            elif name not in _OF_TORCH:
                parts.append((name, self(item)))
        for name in getattr(kind, "__slots__", ()):
            if isinstance(name, str) and hasattr(value, name):
                parts.append((name, self(object.__getattribute__(value, name))))
        return parts


def tensor_parts(value: torch.Tensor) -> Any:
    with torch.no_grad():
        return (str(value.dtype), tuple(value.shape), value.requires_grad, value.is_leaf, value.detach().clone())


def differs(a: Any, b: Any, tolerance: float) -> str | None:
    """The first difference, told in words, or None."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance / 10, equal_nan=True):
            return None
        return f"{a.flatten()[:3].tolist()} is not {b.flatten()[:3].tolist()}"
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        if len(a) != len(b):
            return f"{len(a)} parts are not {len(b)}: {str(a)[:80]} | {str(b)[:80]}"
        for x, y in zip(a, b):
            if (found := differs(x, y, tolerance)) is not None:
                return found
        return None
    return None if a == b and type(a) is type(b) else f"{a!r} is not {b!r}"
