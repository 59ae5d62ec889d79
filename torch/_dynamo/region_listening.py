"""Who hears by which sources Dynamo comes by things, while the calls of regions are traced."""

from __future__ import annotations

from typing import Any


# For each call that is being traced: the sources.
LISTENING: list[set[Any]] = []
