"""Writes what a process compiles to a file while it does: for `explain`, which starts programs with `EXPLAIN` set.

Each line of the file is one JSON object of one kind: the process, a record of a compile with regions, a metric of
Dynamo's, or what was not in the compile cache.  A process that is killed leaves what it had compiled by then, and one
that compiles nothing has no file.
"""

from __future__ import annotations

import atexit
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
        # Lines that are in the file.
        self.written: set[str] = set()
        self.lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def write(self, *_: object) -> None:
        """Adds what is new.  A report is no reason for a program to fail."""
        try:
            with self.lock:
                self._add(_lines())
        except Exception as error:
            sys.stderr.write(f"torch-regions: the report is not complete: {error!r}\n")

    def finish(self) -> None:
        """Adds what is known when the process ends."""
        self.write()
        if self.written and (misses := _collect.cache()):
            self._add([{"cache": misses}])

    def _add(self, lines: list[dict[str, Any]]) -> None:
        new = [text for text in map(json.dumps, lines) if text not in self.written]
        if new:
            if not any(text.startswith('{"process"') for text in self.written):
                new.insert(0, json.dumps({"process": _collect.describe()}))
            self.written.update(new)
            with open(os.path.join(self.folder, f"{self.pid}.jsonl"), "a", encoding="utf-8") as stream:
                stream.write("".join(f"{text}\n" for text in new))

    def _after_fork(self) -> None:
        """What the parent compiled is in its own file."""
        self.pid, self.lock = os.getpid(), threading.Lock()
        self.written = {text for text in self.written if not text.startswith('{"process"')}


def _lines() -> list[dict[str, Any]]:
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is not None and utils._compilation_metrics.maxlen != MAX_METRICS:
        utils.set_compilation_metrics_limit(MAX_METRICS)
    found = [{"record": record} for record in _collect.records()]
    return [*found, *({"metric": metric} for metric in _collect.metrics())]


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
            processes.append(_collect.assemble(kinds["process"][-1], kinds["record"], kinds["metric"], misses))
    return processes
