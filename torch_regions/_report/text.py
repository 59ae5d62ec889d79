"""A report as lines of text, each with the style that rich shows it in."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from torch_regions._report.advice import OPERATORS, advice_for


if TYPE_CHECKING:
    from collections.abc import Iterator

Line = tuple[str, str]

NOTHING = "no call of a region was compiled in this process"
STAGES = {
    "trace": "trace",
    "aot_autograd": "AOTAutograd",
    "inductor": "Inductor",
    "code": "code",
    "compilers": "C++ or Triton",
    "backward": "backward, later",
}


def lines(data: dict[str, Any]) -> Iterator[Line]:
    """The report, line by line."""
    processes = data["processes"]
    for process in processes:
        if len(processes) > 1:
            rank = f", rank {process['rank']}" if process["rank"] is not None else ""
            yield f"process {process['pid']}{rank}: {' '.join(process['command'])}", "bold underline"
        yield from _process(process)


def _process(process: dict[str, Any]) -> Iterator[Line]:
    if process["overlay"] is False:
        yield f"the overlay is off: {process['why']}", "yellow"
    compiles = process["compiles"]
    if not compiles:
        yield "nothing was compiled in this process", "yellow"
    elif not any(compiled["calls"] or compiled["bodies"] for compiled in compiles):
        yield NOTHING, "yellow"
        if not any(compiled["flag"] for compiled in compiles):
            yield "the flag was off: torch._dynamo.config.use_graph_deduplication = True turns it on", "yellow"
    for compiled in compiles:
        yield from _compile(compiled)
    for miss in process["cache"]:
        yield f"compile cache: {miss['outcome']} ({miss['number']}): {miss['reason']}", ""


def short(place: str) -> str:
    """File and line, the file without its folder."""
    return os.path.basename(place)


def _compile(compiled: dict[str, Any]) -> Iterator[Line]:
    stages = compiled["stages"]
    took = f": {sum(stages.values()):.2f} s" if stages else ""
    parts = ", ".join(f"{STAGES[name]} {seconds:.2f}" for name, seconds in stages.items())
    yield (
        f"{compiled['frame']}  {short(compiled['defined'])}  [{compiled['id']}]{took} ({parts or 'not timed'})",
        "bold",
    )
    if compiled["recompile"]:
        yield f"  compiled again: {compiled['recompile'].strip().splitlines()[0]}", "yellow"
    if compiled["failed"]:
        yield f"  failed: {compiled['failed']}", "red"
    bodies = {body["name"]: body for body in compiled["bodies"]}
    by_region = defaultdict(list)
    for call in compiled["calls"]:
        by_region[call["function"], call["automatic"], call["defined"]].append(call)
    for (function, automatic, defined), calls in by_region.items():
        untried = compiled["untried"].get(function, 0) if automatic else 0
        yield from _region(f"{function}{' (automatic)' if automatic else ''}", defined, calls, bodies, untried)
    for body in bodies.values():
        if body["found"]:
            text = f"{body['calls']} calls of {body['operators']} operators, {body['saved']} saved"
            yield f"  found in the graph: {text}; first in {_place(body['found'][0])}", "green"
    saved = sum(body["saved"] for body in bodies.values())
    if saved:
        yield f"  {saved} of {compiled['operators']} operators are not compiled again{estimated(compiled)}", "green"
    for reason, number in compiled["left_out"].items():
        yield f"  {number} operators are in no region: {reason}. {OPERATORS.get(reason, '')}".rstrip(), ""
    if compiled["warning"]:
        yield f"  {compiled['warning']}", "yellow"


def estimated(compiled: dict[str, Any]) -> str:
    """What a compile without regions would take longer, by estimate; empty where that is next to nothing."""
    trace, backend = compiled["trace_saved"], compiled["backend_saved"]
    said = [f"Dynamo's trace about {trace:.2f} s"] if trace >= 0.005 else []
    said += [f"the backend up to about {backend:.2f} s"] if backend >= 0.005 else []
    return f"; without regions, by estimate, {' and '.join(said)} longer" if said else ""


def _place(text: str) -> str:
    return short(text) if "/" in text or "\\" in text else text


def _region(
    name: str, defined: str, calls: list[dict[str, Any]], bodies: dict[str, Any], untried: int
) -> Iterator[Line]:
    counted = Counter(call["outcome"] for call in calls)
    what = ", ".join(f"{counted[each]} {each.lower()}" for each in ("TRACED", "REUSED", "INLINED") if counted[each])
    what += f", {untried} not tried, because nothing became of these" if untried else ""
    names = dict.fromkeys(body for call in calls for body in call["bodies"])
    sizes = [str(bodies[body]["operators"]) for body in names if body in bodies]
    saved = sum(bodies[body]["saved"] for body in names if body in bodies)
    made = f"; bodies of {', '.join(sizes)} operators, {saved} saved" if sizes else ""
    yield (
        f"  {name}  {short(defined)}: {len(calls) + untried} calls: {what}{made}",
        "green" if counted["REUSED"] else "yellow",
    )
    reasons: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for call in calls:
        if call["reason"] or call["miss"]:
            reasons[call["reason"], call["miss"]].append(call)
    for (reason, miss), those in reasons.items():
        yield f"    {len(those)} {_why(reason, miss)}: {difference(those[0])}", "yellow"
        if advice := advice_for(those[0]):
            yield f"      {advice}", "dim"


def _why(reason: str | None, miss: str | None) -> str:
    parts = [f"inlined ({reason})"] if reason else []
    return ", ".join([*parts, f"not reused ({miss})"] if miss else parts)


def difference(call: dict[str, Any]) -> str:
    """Where a call stands, and what differed in it."""
    at = f"{call['path']} called at {short(call['caller'])}" if call["path"] else f"at {short(call['caller'])}"
    differs = call["differs"]
    if differs is not None:
        return f"{at}, {differs['here']} is {differs['value']}, {differs['earlier']} is {differs['old']}"
    return f"{at}, {call['detail']}" if call["detail"] and call["miss"] else at
