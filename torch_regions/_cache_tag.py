"""Keeps artifacts compiled under the overlay and under stock torch apart.

All of torch's compile caches put `torch.compiler.config.cache_key_tag` into their keys. A read of it yields the user's
value followed by the overlay's digest. A write stores the user's part only. So code that reads, changes and restores
the value neither loses the digest nor doubles it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from torch_regions._files import Finder

NAME = "cache_key_tag"
MARK = "+torch-regions:"

_finder: Finder | None = None


def combine(user: object, digest: str) -> str:
    """The value that the caches see."""
    return f"{user_part(user) or ''}{MARK}{digest}"


def user_part(value: object) -> object:
    """The user's part of `value`; anything but a tagged string is returned unchanged."""
    if isinstance(value, str) and MARK in value:
        return value[: value.index(MARK)]
    return value


def install(finder: Finder) -> None:
    """Make torch.compiler.config show `finder`'s decision. Does nothing when torch has no such module."""
    global _finder
    _finder = finder
    config = sys.modules.get("torch.compiler.config")
    if config is None or getattr(type(config), "_torch_regions", False):
        return

    class TaggedConfig(type(config)):  # type: ignore[misc]
        _torch_regions = True

        def __getattr__(self, name: str) -> Any:
            value = super().__getattr__(name)
            if name != NAME or _finder is None or not _finder.decide():
                return value
            decision = _finder.decision
            return combine(value, decision.digest) if decision is not None else value

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, user_part(value) if name == NAME else value)

    TaggedConfig.__name__ = type(config).__name__
    TaggedConfig.__qualname__ = type(config).__qualname__
    # The config module refuses to set anything but its options.
    object.__setattr__(config, "__class__", TaggedConfig)
