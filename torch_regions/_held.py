"""Containers for our own references to stock objects, so that a walk over the heap can tell them from others'."""

from __future__ import annotations

from typing import Any


class Box:
    """Holds one object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Snapshot(dict[str, Any]):
    """A module's namespace as it was."""
