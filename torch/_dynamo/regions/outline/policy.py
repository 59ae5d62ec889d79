"""What is worth a body: the policy of outlining, apart from what is identical and from what is legal.

``GraphRegionTracker`` answers which regions of a graph are identical, ``legality.py`` which operators may be in a body,
``graph_view.py`` what may cross a body's boundary.  Of what is left, an ``OutliningPolicy`` chooses what pays.

The benefit is counted in nodes.  A call of a body costs the backend about as much as ``CALL_COST`` nodes (the call
itself and a getitem an output; where outputs are not known yet, one is assumed), and each node that is in one body
instead of in many places is spared.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol

from torch._dynamo.regions.options import judging


CALL_COST = 2
# A body shorter than this is not worth a call, however often it occurs: the call would keep the
# backend from fusing across it.
MIN_REGION_NODES = 4
# Fewer nodes saved than this do not pay for a body of their own.
MIN_NODES_SAVED = 4
# Inside a body, which is compiled once, it takes more: each call keeps the backend from fusing across it.
MIN_NODES_SAVED_IN_BODY = 16


def nodes_saved(length: int, count: int, call_cost: int = CALL_COST) -> int:
    """How many nodes fewer the backend sees when ``count`` runs of ``length`` share a body."""
    return (count - 1) * length - count * call_cost


class Benefit(Protocol):
    """What makes a group of runs worth a body."""

    @property
    def least_calls(self) -> int:
        """How many runs a group has at least."""

    def of_runs(self, length: int, calls: int) -> bool:
        """Whether so many runs of so many nodes may pay, whatever crosses their boundary."""

    def of_group(self, length: int, calls: int, results: int) -> bool:
        """Whether they pay, given how many values a call returns."""


@dataclasses.dataclass(frozen=True)
class OutliningPolicy:
    """The ``Benefit`` of repeats that were found: what the backend is spared must outweigh the calls."""

    # Nodes in a region.
    least_length: int = MIN_REGION_NODES
    # Nodes that a group of regions saves; None: a repeat is outlined whatever it saves.
    least_saved: int | None = MIN_NODES_SAVED
    least_calls: ClassVar[int] = 2

    @property
    def judges(self) -> bool:
        """Whether a repeat must save anything."""
        return self.least_saved is not None

    def is_worth_it(self, length: int, calls: int, call_cost: int = CALL_COST) -> bool:
        """Whether outlining ``calls`` equal runs pays; the one function that decides it."""
        if calls < self.least_calls or length < self.least_length:
            return False
        return self.least_saved is None or nodes_saved(length, calls, call_cost) >= self.least_saved

    def of_runs(self, length: int, calls: int) -> bool:
        return self.is_worth_it(length, calls)

    def of_group(self, length: int, calls: int, results: int) -> bool:
        return self.is_worth_it(length, calls, CALL_COST - 1 + results)


IN_GRAPH = OutliningPolicy()
IN_BODY = OutliningPolicy(least_saved=MIN_NODES_SAVED_IN_BODY)
# As stock: whatever is identical, may be in a body and has two nodes.
EVERY_REPEAT = OutliningPolicy(least_length=2, least_saved=None)


def policy_in(depth: int) -> OutliningPolicy:
    """The policy for a graph that is a body inside ``depth`` others; see ``torch._dynamo.config.outlining_policy``."""
    if not judging():
        return EVERY_REPEAT
    return IN_BODY if depth else IN_GRAPH
