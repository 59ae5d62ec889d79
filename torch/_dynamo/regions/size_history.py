"""The history of numbers and sizes is that of the frame which would ask for them, were each call traced.

Dynamo keeps by function what changes between compiles, and makes it dynamic.  Without this, it would turn dynamic in
another compile than without the region.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo.regions.frame import PerFrame


# Code and closure of a frame.
Owner = tuple[Any, Any]


class SizeHistory:
    """Which frame asks for the history of which source."""

    def __init__(self) -> None:
        # name of a source -> the frame that asked for the history of a number or size there
        self._owners: dict[str, Owner] = {}
        # The one that is to be taken for it now: the frame that traced a call is gone when another is stamped out.
        self._now: Owner | None = None

    def owner(self, tx: Any, name: str) -> Owner | None:
        """The frame that is to be taken for the one that asks; None when that is ``tx`` itself."""
        self._owners.setdefault(name, self._now or (tx.f_code, tx.closure))
        return self._now

    def as_asked_for(self, name: str) -> SizeHistory:
        """A context: meanwhile, the frame asks that asked for the history of the source ``name`` before."""
        self._now = self._owners.get(name)
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        self._now = None


SIZE_HISTORY: PerFrame[SizeHistory] = PerFrame(lambda _: SizeHistory())
