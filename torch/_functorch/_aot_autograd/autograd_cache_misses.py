"""Why AOTAutogradCache had no entry: the first part of the key in which the nearest entry differs.

Digests are compared. Digests of the keys that this process missed are kept in memory. Digests of a saved entry are in a
file beside the entry, which other processes read if ``TORCH_LOGS`` wants the difference.
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


# How many keys of this process a miss is compared with, and how many misses and bypasses the report has.
MAX_REMEMBERED = 64
MAX_TOLD = 1000
# A miss is compared with the ``MAX_READ`` latest entries of the folder.
MAX_READ = 64
# Digests are kept for this many nodes; a difference further down is reported without its index.
MAX_NODES = 4096
# Lookups ignore names that begin with a dot.
FILE = ".parts.json"


@dataclass
class Summary:
    """The digests of a key: by part, and of the graph by node."""

    key: str
    parts: dict[str, str]
    nodes: list[str]


@dataclass
class Told:
    """The outcome of a graph without an entry, and the reason."""

    outcome: str  # "miss" or "bypass"
    reason: str


_remembered: deque[Summary] = deque(maxlen=MAX_REMEMBERED)
_told: deque[Told] = deque(maxlen=MAX_TOLD)


def told() -> list[Told]:
    """Misses and bypasses of this process, the latest ``MAX_TOLD``."""
    return list(_told)


def forget() -> None:
    """Forgets all misses, bypasses and remembered keys."""
    _remembered.clear()
    _told.clear()


def tell(outcome: str, reason: str) -> str:
    """Notes a miss or a bypass for the report; returns the reason."""
    _told.append(Told(outcome, reason))
    return reason


def explain(key: str, parts: KeyParts, folder: str | None) -> tuple[Summary, str]:
    """Digests of a missed key, and the first part in which the nearest known key differs from it.

    Also compares with the keys in ``folder``, if given.
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
    """Parts that differ, in the order of ``PARTS``, then those that are not in ``PARTS``."""
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
            # The target itself, because its number depends on the nodes before.
            record = (*record[:2], targets[record[2]], *record[3:])
        digests.append(hashlib.blake2b(plain_bytes(record), digest_size=6).hexdigest())
    return digests


def save(summary: Summary, folder: str) -> None:
    """Saves the digests of a key beside its entry, for other processes. Does nothing if the folder is not writable."""
    with contextlib.suppress(OSError):
        write_atomic(os.path.join(folder, FILE), json.dumps(asdict(summary)))


def _read(folder: str) -> Iterator[Summary]:
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.stat().st_mtime, reverse=True)[:MAX_READ]
    except OSError:
        return
    for entry in entries:
        # Skips a file that another version wrote or that is incomplete.
        with contextlib.suppress(OSError, ValueError, TypeError), open(os.path.join(entry.path, FILE)) as file:
            yield Summary(**json.load(file))
