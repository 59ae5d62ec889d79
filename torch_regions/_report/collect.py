"""The records of the overlay and Dynamo's own metrics of the same compiles, as data."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

from torch_regions._report.advice import OF_CALLS


# The version of schema.json. It grows when a reader of an earlier version would go wrong.
SCHEMA = 1
# stage -> the field of Dynamo's metrics that has its time, with the stages inside of it. From the outside.
STAGES = {
    "trace": "duration_us",
    "aot_autograd": "aot_autograd_cumulative_compile_time_us",
    "inductor": "inductor_cumulative_compile_time_us",
    "code": "inductor_code_gen_cumulative_compile_time_us",
    "compilers": "triton_compile_time_us",
}
# Stages whose time grows with what the backend is given.
BACKEND = ("aot_autograd", "inductor", "code", "compilers")
# A call takes a backend as long as this many operators: 0.08 of a layer of Llama, which has 55 (AOTAutograd, training).
OPERATORS_OF_A_CALL = 4


def collect() -> dict[str, Any]:
    """The report of this process so far."""
    return {"schema": SCHEMA, "processes": [assemble(describe(), records(), metrics(), cache())]}


def describe() -> dict[str, Any]:
    """This process."""
    from torch_regions._status import status

    torch, found = sys.modules.get("torch"), None
    if "torch._dynamo" in sys.modules:  # asking would import it
        found = status()
    return {
        "pid": os.getpid(),
        "command": list(sys.argv),
        "rank": os.environ.get("RANK"),
        "torch": str(torch.__version__) if torch is not None else None,
        "overlay": bool(found.active) if found is not None else None,
        "why": found.reason if found is not None and not found.active else "",
        "reasons": _causes() if found is not None and found.active else {},
    }


def _causes() -> dict[str, str]:
    """reason -> its cause, of all reasons that a call or an operator may have."""
    return {name: cause for reasons in OF_CALLS for name, cause in reasons.causes().items()}


def kept() -> list[Any]:
    """The records of compiles with regions, oldest first, as Dynamo's side has them."""
    module = sys.modules.get("torch._dynamo.regions.facts")
    return list(module.facts()) if module is not None else []


def record_as_json(record: Any) -> dict[str, Any]:
    """A record with the time at which it was made."""
    return {"at": record.at, **record.as_json()}


def records() -> list[dict[str, Any]]:
    """The records of compiles with regions, oldest first."""
    return [record_as_json(each) for each in kept()]


def metrics() -> list[dict[str, Any]]:
    """What Dynamo has measured of each compile, and of each backward that was compiled later."""
    module = sys.modules.get("torch._dynamo.utils")
    return [metric_as_json(each) for each in module.get_compilation_metrics()] if module is not None else []


def cache() -> list[dict[str, Any]]:
    """The graphs that AOTAutogradCache did not have."""
    module = sys.modules.get("torch._functorch._aot_autograd.autograd_cache_misses")
    counted = Counter((told.outcome, told.reason) for told in module.told()) if module is not None else {}
    return [{"outcome": outcome, "reason": reason, "number": n} for (outcome, reason), n in counted.items()]


def metric_as_json(of: Any) -> dict[str, Any]:
    """What the report needs of one of Dynamo's metrics."""
    times = {stage: getattr(of, field, None) for stage, field in STAGES.items()}
    return {
        "id": str(of.compile_id),
        "forward": of.is_forward is not False,
        "frame": of.co_name,
        "defined": f"{of.co_filename}:{of.co_firstlineno}" if of.co_filename else "",
        "start": of.start_time_us,
        "duration": of.duration_us,
        "times": times,
        "failed": f"{of.fail_type}: {of.fail_reason}".partition("\n")[0] if of.fail_type else None,
        "recompile": of.recompile_reason,
        "graph_breaks": of.num_graph_breaks,
    }


def assemble(
    process: dict[str, Any],
    found: list[dict[str, Any]],
    measured: list[dict[str, Any]],
    misses: list[dict[str, Any]],
) -> dict[str, Any]:
    """One process as the schema has it: each compile once, with what is known of it."""
    compiles = []
    left = list(measured)
    for record in found:
        metric = next((m for m in left if m["forward"] and _is_of(m, record)), None)
        if metric is not None:
            left.remove(metric)
        compiles.append(_compile(record, metric))
    compiles += [_compile(None, metric) for metric in left if metric["forward"] and metric["frame"]]
    compiles.sort(key=lambda each: each["began"] or 0)
    for metric in left:
        if not metric["forward"]:
            _add_backward(compiles, metric)
    named = {name for each in compiles for call in each["calls"] for name in (call["reason"], call["miss"])}
    named.update(*(each["left_out"] for each in compiles))
    causes = {name: cause for name, cause in process["reasons"].items() if name in named}
    return {**process, "reasons": causes, "compiles": compiles, "cache": misses}


def _is_of(metric: dict[str, Any], record: dict[str, Any]) -> bool:
    """Whether a metric is of the compile in which a record was made; an id comes again after a reset."""
    start = metric["start"] or 0
    return bool(metric["id"] == record["id"] and start <= record["at"] // 1000 <= start + (metric["duration"] or 0))


def _compile(record: dict[str, Any] | None, metric: dict[str, Any] | None) -> dict[str, Any]:
    known: dict[str, Any] = metric or {"id": "", "frame": "", "defined": "", "start": None, "times": {}}
    plain = {"id": known["id"], "thread": "", "frame": known["frame"], "defined": known["defined"], "flag": False}
    plain |= {"operators": None, "calls": [], "untried": {}, "bodies": [], "left_out": {}, "warning": ""}
    made = dict(record) if record is not None else plain
    at = made.pop("at", None)
    made["frame"] = made["frame"] or known["frame"]
    made["defined"] = made["defined"] or known["defined"]
    start = known["start"] if known["start"] is not None else at // 1000 if at is not None else None
    stages = _stages(known["times"])
    return {
        **made,
        "regions": record is not None,
        "began": start / 1e6 if start is not None else None,
        "stages": stages,
        "failed": known.get("failed"),
        "recompile": known.get("recompile"),
        "graph_breaks": known.get("graph_breaks"),
        "trace_saved": round(_trace_saved(made["calls"]), 6),
        "backend_saved": round(_backend_saved(made, stages), 6),
    }


def _stages(times: dict[str, int | None]) -> dict[str, float]:
    """Seconds of each stage without those of the stages inside of it."""
    known = [(stage, time) for stage, time in times.items() if time]
    inside = [*(time for _, time in known[1:]), 0]
    return {stage: max(time - inner, 0) / 1e6 for (stage, time), inner in zip(known, inside, strict=False)}


def _trace_saved(calls: list[dict[str, Any]]) -> float:
    """How much longer Dynamo would have traced, if each reused call took as long as the fastest traced one."""
    traced: dict[tuple[str, ...], float] = {}
    for call in calls:
        if call["outcome"] == "TRACED" and call["bodies"]:
            bodies = tuple(call["bodies"])
            traced[bodies] = min(call["seconds"], traced.get(bodies, call["seconds"]))
    reused = [call for call in calls if call["outcome"] == "REUSED"]
    return float(sum(max(traced.get(tuple(call["bodies"]), 0.0) - call["seconds"], 0.0) for call in reused))


def _backend_saved(made: dict[str, Any], stages: dict[str, float]) -> float:
    """An estimate of how much longer AOTAutograd, Inductor and its compilers would take without regions.

    It takes the backend's time to grow in proportion to what the backend is given: the operators of a body once, and
    ``OPERATORS_OF_A_CALL`` for each call; without regions, the operators once for each call. It is too high where a
    part of the time is fixed (imports, the start of a compiler), as in a process's first compile. It is too low where
    passes over a large graph take more than linear time. It is 0 where nothing was timed, and a backward that is
    compiled later is not in it.
    """
    taken = sum(seconds for stage, seconds in stages.items() if stage in BACKEND)
    if not taken or not made["operators"]:
        return 0.0
    given = made["operators"] - sum(body["saved"] for body in made["bodies"])
    given += OPERATORS_OF_A_CALL * sum(body["calls"] for body in made["bodies"])
    return float(max(taken * (made["operators"] / given - 1), 0.0)) if given > 0 else 0.0


def _add_backward(compiles: list[dict[str, Any]], metric: dict[str, Any]) -> None:
    """Adds a backward that was compiled later to the latest compile of the same id before it."""
    before = [c for c in compiles if c["id"] == metric["id"] and (c["began"] or 0) * 1e6 <= (metric["start"] or 0)]
    if before:
        stages = before[-1]["stages"]
        stages["backward"] = stages.get("backward", 0.0) + (metric["duration"] or 0) / 1e6
