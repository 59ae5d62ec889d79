"""Which repeats are worth a body.

``GraphRegionTracker`` answers which regions of a graph are identical, ``legality.py`` which operators may be in a body,
``graph_view.py`` what may cross a body's boundary. Among the regions that remain, an ``OutliningPolicy`` chooses those
that pay.

The benefit is counted in nodes. A call costs the backend about as much as ``CALL_COST`` nodes: the call itself and a
getitem for each output (one, while the outputs are not known). Each node that is in one body instead of in many places
is saved.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol

from torch._dynamo.regions.options import judging


CALL_COST = 2
# A shorter body is not worth a call, however often it occurs: the backend cannot fuse across the call.
MIN_REGION_NODES = 4
# A group that saves fewer nodes does not pay for a body.
MIN_NODES_SAVED = 4
# The minimum is higher inside a body: a body is compiled once, and the backend cannot fuse across a call.
MIN_NODES_SAVED_IN_BODY = 16


def nodes_saved(length: int, count: int, call_cost: int = CALL_COST) -> int:
    """How many fewer nodes the backend sees if ``count`` runs of ``length`` share a body."""
    return (count - 1) * length - count * call_cost


class Benefit(Protocol):
    """Decides whether a group of runs is worth a body."""

    @property
    def least_calls(self) -> int:
        """The least number of runs in a group."""

    def of_runs(self, length: int, calls: int) -> bool:
        """Whether ``calls`` runs of ``length`` nodes may pay, whatever crosses their boundary."""

    def of_group(self, length: int, calls: int, results: int) -> bool:
        """Whether they pay if a call returns ``results`` values."""


@dataclasses.dataclass(frozen=True)
class OutliningPolicy:
    """The ``Benefit`` of repeats found by search: they must save the backend more than the calls cost."""

    least_length: int = MIN_REGION_NODES
    # The least number of nodes that a group saves; None: a repeat is outlined whatever it saves.
    least_saved: int | None = MIN_NODES_SAVED
    least_calls: ClassVar[int] = 2

    @property
    def judges(self) -> bool:
        """Whether a repeat must save nodes to be outlined."""
        return self.least_saved is not None

    def is_worth_it(self, length: int, calls: int, call_cost: int = CALL_COST) -> bool:
        """Whether outlining ``calls`` equal runs pays. The other methods delegate to this one."""
        if calls < self.least_calls or length < self.least_length:
            return False
        return self.least_saved is None or nodes_saved(length, calls, call_cost) >= self.least_saved

    def of_runs(self, length: int, calls: int) -> bool:
        return self.is_worth_it(length, calls)

    def of_group(self, length: int, calls: int, results: int) -> bool:
        return self.is_worth_it(length, calls, CALL_COST - 1 + results)


IN_GRAPH = OutliningPolicy()
IN_BODY = OutliningPolicy(least_saved=MIN_NODES_SAVED_IN_BODY)
# As in stock: identical legal runs of two nodes or more.
EVERY_REPEAT = OutliningPolicy(least_length=2, least_saved=None)


def policy_in(depth: int) -> OutliningPolicy:
    """The policy for a graph that is a body inside ``depth`` others; see ``torch._dynamo.config.outlining_policy``."""
    if not judging():
        return EVERY_REPEAT
    return IN_BODY if depth else IN_GRAPH
