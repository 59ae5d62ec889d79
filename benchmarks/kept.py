"""The rows of a benchmark's table, in a file.

A table of all rows takes hours.  Each row is written as soon as it is measured, so that a run that was ended loses one
row at most, and a later run measures the rest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.modes import conditions


class Kept:
    """Rows of one kind: measured with the same options, in one run or in several."""

    def __init__(self, path: Path, order: Callable[[str], Any], kind: dict[str, Any]) -> None:
        """Begins with the rows of ``path``, if they are of this ``kind``.

        ``order``: the table is sorted by it, applied to the name of a row.
        """
        self.path, self.kind, self._order = path, kind, order
        self._conditions = conditions()
        # name of a row -> what was measured, as JSON has it
        self.rows: dict[str, Any] = {}
        # name of a row -> machine, releases and command of the run that measured it
        self._measured_under: dict[str, str] = {}
        if path.exists():
            content = json.loads(path.read_text())
            if content["kind"] == kind:
                self.rows, self._measured_under = content["rows"], content["conditions"]

    def wanted(self, names: Iterable[str], missing: bool) -> list[str]:
        """Which of ``names`` are to be measured: all, or those that the file does not have if ``missing``."""
        return [name for name in names if not (missing and name in self.rows)]

    def add(self, name: str, row: Any) -> None:
        """Writes ``row``, in the place of one that the file has under the name."""
        self.rows[name], self._measured_under[name] = row, self._conditions
        self.rows = {each: self.rows[each] for each in sorted(self.rows, key=self._order)}
        content = {"kind": self.kind, "conditions": self._measured_under, "rows": self.rows}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(content, indent=1) + "\n")

    def conditions(self) -> str:
        """A line for each run that measured rows; if they were several, with the names of its rows."""
        runs: dict[str, list[str]] = {}
        for name in self.rows:
            runs.setdefault(self._measured_under[name], []).append(name)
        if len(runs) == 1:
            return next(iter(runs))
        return "\n".join(f"- {', '.join(names)}: {line}" for line, names in runs.items())


def add_missing_option(parser: argparse.ArgumentParser) -> None:
    """``--missing``, for ``Kept.wanted``."""
    parser.add_argument("--missing", action="store_true", help="measure only rows that the file in DIR does not have")
