"""Keeps the history of dynamic sizes under the function that would own it if each call were traced.

Dynamo keeps that history by function: a number or size that changes between compiles becomes dynamic.  Without this
file, it would become dynamic in another compile than without the region.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo.regions.frame import PerFrame


# Code and closure of a frame.
Owner = tuple[Any, Any]


class SizeHistory:
    """The frame that owns the history of each source."""

    def __init__(self) -> None:
        # name of a source -> the frame that first asked for the history of the number or size there
        self._owners: dict[str, Owner] = {}
        # Replaces the asking frame: when a call is stamped out, the frame that traced the earlier call is gone.
        self._now: Owner | None = None

    def owner(self, tx: Any, name: str) -> Owner | None:
        """The frame whose history to use for the source ``name``; None for that of ``tx`` itself."""
        self._owners.setdefault(name, self._now or (tx.f_code, tx.closure))
        return self._now

    def as_asked_for(self, name: str) -> SizeHistory:
        """A context in which ``owner`` is the frame that asked for the history of the source ``name`` before."""
        self._now = self._owners.get(name)
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        self._now = None


SIZE_HISTORY: PerFrame[SizeHistory] = PerFrame(lambda _: SizeHistory())
