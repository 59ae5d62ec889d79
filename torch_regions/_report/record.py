"""Writes what a process compiles to a file while it does: for `explain`, which starts programs with `EXPLAIN` set.

Each line of the file is one JSON object of one kind: the process, a record of a compile with regions, a metric of
Dynamo's, or what was not in the compile cache.  A process that is killed leaves what it had compiled by then, and one
that compiles nothing has no file.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch_regions._report.collect as _collect


if TYPE_CHECKING:
    from types import ModuleType


# Metrics that Dynamo keeps: a program may compile more frames than it keeps by default.
MAX_METRICS = 10_000


class Recorder:
    """The file of one process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.pid = os.getpid()
        self.has_file = False
        # What of each record is in the file, by the record's id() and time; at most as many as Dynamo's side keeps.
        self.written: dict[tuple[int, int], tuple[Any, ...]] = {}
        # Dynamo's latest metric that is in the file.
        self.metric: Any = None
        self.lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def write(self, *_: object) -> None:
        """Adds what is new.  A report is no reason for a program to fail."""
        try:
            with self.lock:
                self._add([*self._new_records(), *self._new_metrics()])
        except Exception as error:
            sys.stderr.write(f"torch-regions: the report is not complete: {error!r}\n")

    def finish(self) -> None:
        """Adds what is known when the process ends."""
        self.write()
        if self.has_file and (misses := _collect.cache()):
            self._add([{"cache": misses}])

    def _new_records(self) -> list[dict[str, Any]]:
        """Records that have changed since they were written: each is made JSON once, or once more if it has grown."""
        found, before, self.written = [], self.written, {}
        for record in _collect.kept():
            key, now = (id(record), record.at), _extent(record)
            self.written[key] = now
            if before.get(key) != now:
                found.append({"record": _collect.record_as_json(record)})
        return found

    def _new_metrics(self) -> list[dict[str, Any]]:
        """Metrics behind the latest that was written: they do not change."""
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is None:
            return []
        if utils._compilation_metrics.maxlen != MAX_METRICS:
            utils.set_compilation_metrics_limit(MAX_METRICS)
        latest = reversed(utils.get_compilation_metrics())
        found = list(itertools.takewhile(lambda metric: metric is not self.metric, latest))
        if found:
            self.metric = found[0]
        return [{"metric": _collect.metric_as_json(metric)} for metric in reversed(found)]

    def _add(self, lines: list[dict[str, Any]]) -> None:
        if not lines:
            return
        if not self.has_file:
            self.has_file = True
            lines.insert(0, {"process": _collect.describe()})
        with open(os.path.join(self.folder, f"{self.pid}.jsonl"), "a", encoding="utf-8") as stream:
            stream.write("".join(f"{json.dumps(each)}\n" for each in lines))

    def _after_fork(self) -> None:
        """What the parent compiled is in its own file."""
        self.pid, self.lock, self.has_file = os.getpid(), threading.Lock(), False


def _extent(record: Any) -> tuple[Any, ...]:
    """What tells whether a record has grown, at little cost."""
    return record.attempt, len(record.calls), record.frame, len(record.bodies), record.operators, record.warning


_recorder: Recorder | None = None


def start(folder: str) -> None:
    """Records this process from now on, to its end."""
    global _recorder
    if _recorder is None:
        _recorder = Recorder(folder)
        atexit.register(_recorder.finish)


def listen(module: ModuleType) -> None:
    """Writes at the end of each compile too, if this process is recorded; its compiler is being imported.

    ``module`` is the overlay's that tells of compiles with regions: ``torch._dynamo.reset()`` takes callbacks away.
    """
    if _recorder is not None:
        from torch._dynamo.callback import callback_handler

        write = _recorder.write
        callback_handler.register_end_callback(write)
        module.ON_CHANGE.append(lambda on: None if on else write())


def read(folder: str) -> list[dict[str, Any]]:
    """The processes of which there are files in ``folder``, each as the schema has it, in the order of their ids."""
    processes = []
    for name in sorted(os.listdir(folder), key=lambda name: int(name.partition(".")[0])):
        kinds: dict[str, list[Any]] = {"process": [], "record": [], "metric": [], "cache": []}
        with open(os.path.join(folder, name), encoding="utf-8") as stream:
            for text in stream:
                if text.endswith("\n"):  # the last line of a process that was killed may be a part of one
                    for kind, value in json.loads(text).items():
                        kinds[kind].append(value)
        if kinds["process"]:
            misses = kinds["cache"][-1] if kinds["cache"] else []
            # A record that was written while its compile went on was written again.
            records = list({(each["id"], each["at"]): each for each in kinds["record"]}.values())
            processes.append(_collect.assemble(kinds["process"][-1], records, kinds["metric"], misses))
    return processes
