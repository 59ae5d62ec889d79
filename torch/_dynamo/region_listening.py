"""What Dynamo tells of by itself, while the calls of regions are traced: doors that know no frame."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(eq=False)
class Listener:
    """What one call hears of."""

    # Sources that Dynamo came by.
    came_by: set[Any] = dataclasses.field(default_factory=set)
    # Sources of opaque objects that the program looked into.
    opened: set[Any] = dataclasses.field(default_factory=set)


# One for each call that is being traced.
LISTENING: list[Listener] = []
