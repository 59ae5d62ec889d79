"""A report as one HTML page that needs no other file and no network."""

from __future__ import annotations

import os
import re
from typing import Any

from torch_regions._report.advice import OF_CALLS, advice_for
from torch_regions._report.text import STAGES, difference, estimated, short


# Degrees between the hues of two bodies: neighbours differ, whatever their number.
HUE = 137
ADVICE = {name: advice for reasons in OF_CALLS for name, advice in reasons.advice.items()}
_SEGMENT = re.compile(r"[^.\[\]]+|\[\d+\]")


def page(data: dict[str, Any]) -> str:
    """The page.  Raises ImportError where jinja2 is not installed."""
    import jinja2

    here = os.path.dirname(os.path.abspath(__file__))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(here), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.get_template("page.html.jinja")
    processes = [
        {**process, "compiles": _compiles(process, k), "anchor": f"p{k}"} for k, process in enumerate(data["processes"])
    ]
    return template.render(processes=processes, stages=STAGES, short=short, estimated=estimated, why=ADVICE)


def _compiles(process: dict[str, Any], number: int) -> list[dict[str, Any]]:
    compiles = process["compiles"]
    longest = max((sum(each["stages"].values()) for each in compiles), default=0) or 1
    return [_compile(each, longest, f"p{number}c{k}") for k, each in enumerate(compiles)]


def _compile(compiled: dict[str, Any], longest: float, name: str) -> dict[str, Any]:
    hues = {body["name"]: k * HUE % 360 for k, body in enumerate(compiled["bodies"])}
    calls = [
        {
            **call,
            "anchor": f"{name}n{k}",
            "hue": next((hues[body] for body in call["bodies"] if body in hues), None),
            "advice": advice_for(call),
            "where": difference(call),
        }
        for k, call in enumerate(compiled["calls"])
    ]
    return {
        **compiled,
        "anchor": name,
        "seconds": sum(compiled["stages"].values()),
        "spans": [(stage, seconds, 100 * seconds / longest) for stage, seconds in compiled["stages"].items()],
        "calls": calls,
        "bodies": [{**body, "hue": hues[body["name"]]} for body in compiled["bodies"]],
        "tree": tree(calls),
    }


def tree(calls: list[dict[str, Any]]) -> dict[str, Any]:
    """The modules of ``calls``, by the parts of their paths; ``calls`` of a node are those of that module itself."""
    root: dict[str, Any] = {"calls": [], "parts": {}}
    for call in calls:
        at = root
        for segment in _SEGMENT.findall(call["path"]):
            at = at["parts"].setdefault(segment, {"calls": [], "parts": {}})
        if at is not root:
            at["calls"].append(call)
    return root
