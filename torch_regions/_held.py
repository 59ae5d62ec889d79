"""Containers for the loader's own references to stock objects, which rebind() leaves alone."""

from __future__ import annotations

from typing import Any


class Box:
    """Holds one object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Snapshot(dict[str, Any]):
    """A copy of a module's namespace."""
