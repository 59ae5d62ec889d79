"""What became of the calls of regions, as a table."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any


def report() -> str:
    """A table of the calls of regions in this process: by function and outcome, with the reasons.

    Regions are what the program marks, and modules that Dynamo found to repeat: these are called automatic.

    The latest 10,000 calls are known. Returns a line that says so when there are none. Below it stands, for each graph
    that AOTAutogradCache did not have, in what the nearest entry differs, or why it is not cached.
    """
    return "\n".join([_calls(), *_cache()])


def _calls() -> str:
    from importlib import import_module

    try:
        outcomes: list[Any] = import_module("torch._dynamo.regions.outcomes").outcomes()
    except ImportError:  # the overlay is off
        outcomes = []
    if not outcomes:
        return "no call of a region was compiled in this process"
    counted = Counter(_row(outcome) for outcome in outcomes)
    rows = [("region", "outcome", "calls", "reason")]
    rows += [(function, what, str(n), why) for (function, what, why), n in sorted(counted.items())]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines = ["  ".join((*(row[k].ljust(widths[k]) for k in range(3)), row[3])).rstrip() for row in rows]
    return "\n".join(lines)


def _cache() -> list[str]:
    misses = sys.modules.get("torch._functorch._aot_autograd.autograd_cache_misses")
    if misses is None:  # nothing was looked up
        return []
    counted = Counter((told.outcome, told.reason) for told in misses.told())
    return [f"compile cache: {outcome} ({n}): {reason}" for (outcome, reason), n in counted.items()]


def _row(outcome: Any) -> tuple[str, str, str]:
    why = [outcome.reason.value] if outcome.reason is not None else []
    why += [f"not reused: {outcome.miss.value}"] if outcome.miss is not None else []
    function = f"{outcome.function} (automatic)" if outcome.automatic else outcome.function
    return function, outcome.outcome.name, "; ".join(why)
