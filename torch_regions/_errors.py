"""What can go wrong with the overlay, as exceptions and one warning."""

from __future__ import annotations


class OverlayError(RuntimeError):
    """The overlay itself is at fault: a file of ours does not fit its stock module."""


class OverlayMismatch(OverlayError):
    """The installed torch is not the one the overlay was verified against. Raised under TORCH_REGIONS=strict only."""


class ManifestError(OverlayError):
    """manifest.toml is missing, is no TOML, or lacks a field."""


class OverlayWarning(UserWarning):
    """The overlay stays off; the message names what did not match."""
