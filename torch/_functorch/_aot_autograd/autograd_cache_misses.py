"""Why AOTAutogradCache had no entry: the first part of the key in which the nearest entry differs.

What is compared are digests.  Those of the keys that this process has missed are kept in memory, and those of saved
entries in a file beside the entry, which other processes read when ``TORCH_LOGS`` asks for the difference.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch._functorch._aot_autograd.autograd_cache_parts import PARTS, KeyParts, plain_bytes
from torch._inductor.codecache import write_atomic


# Keys of this process that a miss is compared with, and misses and bypasses that the report tells of.
MAX_REMEMBERED = 64
MAX_TOLD = 1000
# Entries of the folder that a miss is compared with, the latest ones.
MAX_READ = 64
# Nodes of which a digest is kept; a difference further down is reported without its index.
MAX_NODES = 4096
# The name begins with a dot, so lookups pass it over.
FILE = ".parts.json"


@dataclass
class Summary:
    """The digests of a key: by part, and of the graph by node."""

    key: str
    parts: dict[str, str]
    nodes: list[str]


@dataclass
class Told:
    """What became of a graph that was not found, and why."""

    outcome: str  # "miss" or "bypass"
    reason: str


_remembered: deque[Summary] = deque(maxlen=MAX_REMEMBERED)
_told: deque[Told] = deque(maxlen=MAX_TOLD)


def told() -> list[Told]:
    """Misses and bypasses of this process, the latest ``MAX_TOLD``."""
    return list(_told)


def forget() -> None:
    """Forgets what was told and remembered."""
    _remembered.clear()
    _told.clear()


def tell(outcome: str, reason: str) -> str:
    """Notes a miss or a bypass for the report; returns the reason."""
    _told.append(Told(outcome, reason))
    return reason


def explain(key: str, parts: KeyParts, folder: str | None) -> tuple[Summary, str]:
    """Digests of a key that was not found, and the first part in which the nearest known key differs from it.

    Keys in ``folder`` are looked at too, if it is given.
    """
    ours = Summary(key, dict(parts.digests), _node_digests(parts))
    known = {summary.key: summary for summary in _read(folder)} if folder is not None else {}
    known.update({summary.key: summary for summary in _remembered})
    _remembered.append(ours)
    known.pop(key, None)
    if not known:
        return ours, "there is no other entry to compare with"
    nearest = min(known.values(), key=lambda other: _distance(ours, other))
    return ours, f"the nearest entry, {nearest.key}, {_difference(ours, nearest, parts)}"


def _distance(ours: Summary, other: Summary) -> tuple[int, int, str]:
    return len(_differing(ours, other)), -_common_nodes(ours, other), other.key


def _differing(ours: Summary, other: Summary) -> list[str]:
    """Parts that differ, in the order of ``PARTS``, then those that it does not know."""
    names = [*PARTS, *sorted((ours.parts.keys() | other.parts.keys()) - PARTS.keys())]
    return [name for name in names if ours.parts.get(name) != other.parts.get(name)]


def _common_nodes(ours: Summary, other: Summary) -> int:
    for index, (one, two) in enumerate(zip(ours.nodes, other.nodes, strict=False)):
        if one != two:
            return index
    return min(len(ours.nodes), len(other.nodes))


def _difference(ours: Summary, other: Summary, parts: KeyParts) -> str:
    first, *more = _differing(ours, other)
    why = PARTS.get(first)
    text = f"differs in {first}" + (f" (else {why})" if why else "")
    if first == "graph":
        text += f", first at {_location(_common_nodes(ours, other), parts)}"
    return text + (f"; also in {', '.join(more)}" if more else "")


def _location(index: int, parts: KeyParts) -> str:
    assert parts.graph is not None
    for number, records in enumerate(parts.graph.records):
        if index < len(records):
            return (
                f"node {index} of {'the graph' if number == 0 else f'body {number}'}, {_words(records[index], parts)}"
            )
        index -= len(records)
    return "its end"


def _words(record: tuple[Any, ...], parts: KeyParts) -> str:
    assert parts.graph is not None
    if len(record) == 6 and isinstance(record[2], int):
        target = parts.graph.targets[record[2]]
        return f"a call of {target if isinstance(target, str) else target[-1]}"
    return str(record[1] if record[0] != "attribute" else "an attribute")


def _node_digests(parts: KeyParts) -> list[str]:
    assert parts.graph is not None
    targets = parts.graph.targets
    digests: list[str] = []
    for record in (record for records in parts.graph.records for record in records):
        if len(digests) == MAX_NODES:
            break
        if len(record) == 6 and isinstance(record[2], int):
            # By what it calls: numbers of targets depend on what came before.
            record = (*record[:2], targets[record[2]], *record[3:])
        digests.append(hashlib.blake2b(plain_bytes(record), digest_size=6).hexdigest())
    return digests


def save(summary: Summary, folder: str) -> None:
    """Keeps the digests of a key beside its entry, for other processes. Does nothing where it may not write."""
    with contextlib.suppress(OSError):
        write_atomic(os.path.join(folder, FILE), json.dumps(asdict(summary)))


def _read(folder: str) -> Iterator[Summary]:
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.stat().st_mtime, reverse=True)[:MAX_READ]
    except OSError:
        return
    for entry in entries:
        # Written by another version, or by a process that was stopped: then it is not compared with.
        with contextlib.suppress(OSError, ValueError, TypeError), open(os.path.join(entry.path, FILE)) as file:
            yield Summary(**json.load(file))
