"""The exceptions of the overlay, and its one warning."""

from __future__ import annotations


class OverlayError(RuntimeError):
    """The overlay itself is at fault: one of its files does not fit the stock module."""


class OverlayMismatch(OverlayError):
    """The installed torch is not the one the overlay was verified against. Raised under TORCH_REGIONS=strict only."""


class ManifestError(OverlayError):
    """manifest.toml is missing, is not TOML or lacks a field, or TORCH_REGIONS_GROUPS has a wrong value."""


class OverlayWarning(UserWarning):
    """The overlay, or a group of its rows, stays off; the message says why."""
