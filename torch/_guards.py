"""Overlay of torch._guards: the cache of traced regions.

Entries are found by bucket (function and fingerprint of the arguments), then by their condition.
A function keeps at most ``max_reuse_entries`` of them; one more evicts the least recently used.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from torch_regions.overlay import replaces, stock


log = logging.getLogger(__name__)


@replaces
@dataclass(eq=False)
class InvokeSubgraphReuseCondition:
    """When a traced call may stand for another one whose arguments have the same fingerprint.

    Every field is about sources behind an argument; they are transported to the other call's arguments.
    """

    # Sources of each leaf of the arguments: what transport rewrites.
    leaf_sources: list[tuple[Any, ...]]
    # (source, check, expected, create_fn): guards that hold, and that the reuse installs again. Without them a
    # body would be reused for another attribute, type or constant than it was traced with.
    guards: list[tuple[Any, Any, Any, Any]]
    # (source, own attributes, hooks...): what no guard says of an object. Without it, a hook or an attribute
    # that shadows one of the class would be overlooked.
    objects: list[tuple[Any, Hashable]]
    # Sources whose values are different objects in the traced call; (source, source) pairs that are one object.
    # Without them a body that was traced for two weights would be reused for tied ones, or the reverse.
    distinct: list[Any]
    same: list[tuple[Any, Any]]
    # Trackers of existing objects that the call met. Reuse is refused when the frame changes one: a guard is
    # about the object as it was when the frame began.
    met: list[Any]


@replaces
@dataclass(eq=False)
class InvokeSubgraphReuseEntry:
    """One traced variant of a region, and how to stamp out a call of it."""

    # The traced call, whose operators become the body.
    call: Any
    condition: InvokeSubgraphReuseCondition
    # Where each value that the body takes comes from, in the order of its operands.
    inputs: list[Any]
    # Which of the body's values the result is made of (places), and how.
    results: list[int]
    recipe: Callable[..., Any]
    # The global state that it was traced under is in its bucket.
    function: Any = None
    bucket: Hashable = None
    hits: int = field(default=0)


@replaces
class InvokeSubgraphCache(stock("torch._guards:InvokeSubgraphCache")):  # type: ignore[misc]
    """What is known of regions while one frame is compiled: stock's caches by identifier, and our entries."""

    def __init__(self) -> None:
        super().__init__()
        # (function, fingerprint) -> entries, latest use first.
        self.buckets: dict[Hashable, list[InvokeSubgraphReuseEntry]] = {}
        # function -> its entries, least recently used first.
        self.by_function: dict[Any, OrderedDict[int, InvokeSubgraphReuseEntry]] = {}

    def find(self, bucket: Hashable) -> list[InvokeSubgraphReuseEntry]:
        """Entries of calls with such a fingerprint, latest use first."""
        return list(self.buckets.get(bucket, ()))

    def knows(self, function: Any) -> bool:
        """Whether ``function`` has an entry."""
        return bool(self.by_function.get(function))

    def add(self, entry: InvokeSubgraphReuseEntry, max_reuse_entries: int) -> None:
        """Adds an entry; drops the least recently used one of its function when there are more than allowed."""
        own = self.by_function.setdefault(entry.function, OrderedDict())
        own[id(entry)] = entry
        self.buckets.setdefault(entry.bucket, []).insert(0, entry)
        while len(own) > max(max_reuse_entries, 0):
            _, old = own.popitem(last=False)
            self.buckets[old.bucket].remove(old)
            log.info(
                "region %s: more than %d variants, the least recently used is dropped (%d calls reused it);"
                " see max_reuse_entries of nested_compile_region",
                entry.function,
                max_reuse_entries,
                old.hits,
            )

    def touch(self, entry: InvokeSubgraphReuseEntry) -> None:
        """Notes a use of ``entry``."""
        entry.hits += 1
        self.by_function[entry.function].move_to_end(id(entry))
        bucket = self.buckets[entry.bucket]
        bucket.remove(entry)
        bucket.insert(0, entry)
