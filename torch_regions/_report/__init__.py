"""What a process compiled, and what regions came to in it: as text, as JSON and as a page.

collect.py   the records of Dynamo's side, with Dynamo's own metrics, as data (schema.json)
text.py      that as lines
page.py      that as one HTML file
advice.py    for each reason, what to do
record.py    in a process that `explain` runs: writes the records to a file while they are made
explain.py   `python -m torch_regions explain`
progress.py  a line on the terminal while a program compiles
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Iterator


class Report:
    """What one or more processes compiled.  ``print`` shows it; with rich, ``rich.print`` does so in colour."""

    def __init__(self, data: dict[str, Any]) -> None:
        """``data`` is as schema.json says."""
        self.data = data

    def __str__(self) -> str:
        from torch_regions._report.text import lines

        return "\n".join(line for line, _ in lines(self.data))

    __repr__ = __str__

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        from torch_regions._report.text import lines

        for line, style in lines(self.data):
            yield Text(line, style=style)

    def html(self) -> str:
        """A page that needs no other file.  It needs jinja2, which comes with torch."""
        from torch_regions._report.page import page

        return page(self.data)

    _repr_html_ = html


def report() -> Report:
    """What this process has compiled so far, and what regions came to in it.

    Regions are what the program marks, and modules that Dynamo found to repeat: these are called automatic. The latest
    1,000 compiles with regions are known, and the latest 64 of Dynamo's own metrics. For each graph that
    AOTAutogradCache did not have, the report says in what the nearest entry differs, or why it is not cached.
    """
    from torch_regions._report.collect import collect

    return Report(collect())
