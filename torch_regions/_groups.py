"""Selects the groups of rows: those that the user names and that match the installed torch.

Results depend on `core`, so the loader uses all of `core`, or the overlay is off. Any other group stays off alone: the
targets of its rows then stay stock's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torch_regions._errors import ManifestError


if TYPE_CHECKING:
    from collections.abc import Iterable

ENV = "TORCH_REGIONS_GROUPS"
# "core": results depend on it. "cost": the cost of a call of a region. "cache": the canonical key of AOTAutogradCache,
# and what belongs to it. "speed": a short way through a function that programs without regions run too.
GROUPS = ("core", "cost", "cache", "speed")
CORE = "core"


def asked_for() -> frozenset[str]:
    """The groups that TORCH_REGIONS_GROUPS names; all groups if it is unset or empty.

    Raises ManifestError for a name that is no group, and if `core` is missing.
    """
    text = os.environ.get(ENV, "")
    names = frozenset(name.strip() for name in text.split(",") if name.strip()) or frozenset(GROUPS)
    for name in sorted(names - frozenset(GROUPS)):
        raise ManifestError(f'{ENV}="{text}": "{name}" is no group; the groups are {", ".join(GROUPS)}')
    if CORE not in names:
        raise ManifestError(
            f'{ENV}="{text}" lacks "{CORE}", without which no other group is used; TORCH_REGIONS=0 is off'
        )
    return names


def left_out(asked: frozenset[str], mismatches: Iterable[tuple[str, frozenset[str]]]) -> dict[str, str]:
    """Group that is not used -> the reason. If `core` is left out, so are all others.

    A mismatch is a text and the groups that it concerns.
    """
    found = {name: f"{ENV} does not name it" for name in GROUPS if name not in asked}
    problems: dict[str, list[str]] = {}
    for text, groups in mismatches:
        for name in groups & asked:
            problems.setdefault(name, []).append(text)
    found.update((name, shortened(texts)) for name, texts in problems.items())
    if CORE in problems:
        found.update((name, found[CORE]) for name in GROUPS)
    return found


def shortened(texts: list[str], limit: int = 5) -> str:
    """The first `limit` texts, and how many more there are."""
    shown = texts[:limit]
    if len(texts) > limit:
        shown.append(f"and {len(texts) - limit} more (python -m torch_regions verify)")
    return "; ".join(shown)
