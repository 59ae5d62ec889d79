"""Injects exceptions of each kind at the events of a compile, in forked processes, and prints what they leave behind.

    OMP_NUM_THREADS=1 python test/faults/inject.py [--count 2000] [--timer] [--stock] [--programs layers ...] [--files NAME ...]
        [--out FILE]

Without regions (``--stock``, with TORCH_REGIONS=0) events are functions of torch's compiler; else those of the overlay's
files. What stock leaves behind too is no fault of regions. Exit status 1 if there is another one.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.compile_fx
from fault_programs import PROGRAMS
from injecting import KINDS, Event, Found, Trial, moments

import torch_regions


TORCH = os.path.dirname(torch.__file__)
_OURS = os.path.join(torch_regions.status().root, "torch") + os.sep
# Programs by name, with the backend whose part of the events is looked at: the graph is captured with the first alike.
# With Inductor, each program is compiled, then found in the cache.
BACKENDS = {
    "eager": ("_dynamo", "_guards.py", "fx", "utils", "_higher_order_ops"),
    "aot_eager": ("_functorch", "_subclasses", "_higher_order_ops"),
    "inductor": ("_inductor", "_functorch"),
}
# Program and backend -> its share of the injections: less where one takes longer.
SHARES = {
    "layers/eager": 25,
    "search/eager": 15,
    "marks/eager": 30,
    "layers/aot_eager": 8,
    "search/aot_eager": 3,
    "marks/aot_eager": 7,
    "layers/inductor": 6,
    "marks/inductor": 6,
}
SECONDS_FOR_ONE = 120


def overlays(file: str) -> str | None:
    return file.removeprefix(_OURS) if file.startswith(_OURS) else None


def stocks(file: str) -> str | None:
    if not file.startswith(TORCH + os.sep):
        return None
    return file.removeprefix(TORCH + os.sep)


def trial(choice: str, regions: bool) -> Trial:
    name, backend = choice.split("/")
    expected = PROGRAMS[name](False, "eager")
    file_of, parts = (overlays if regions else stocks), BACKENDS[backend]

    def of_interest(path: str) -> str | None:
        file = file_of(path)
        return file if file is not None and file.split(os.sep)[0] in parts else None

    if backend != "inductor":
        return Trial(lambda: PROGRAMS[name](regions, backend), expected, of_interest)
    folder = tempfile.mkdtemp()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder

    def empty() -> None:  # but for what the C++ compiler made
        for kept in ("aotautograd", "fxgraph", "regions"):
            shutil.rmtree(os.path.join(folder, kept), ignore_errors=True)

    def twice() -> Any:
        values = PROGRAMS[name](regions, "inductor")
        torch._dynamo.reset()
        again = PROGRAMS[name](regions, "inductor")
        return values if all(map(torch.allclose, values, again)) else again

    return Trial(twice, expected, of_interest, empty)


# This process runs no program: a CUDA build of torch runs no backward in a fork of a process that has run one.


def in_child(work: Callable[[], Any]) -> Any:
    """What ``work`` returns, or raises, in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(work).result()


def in_children(plan: list[Any], make: Callable[[], Trial], attempt: Callable[[Trial, Any], Found]) -> Iterator[Found]:
    """What ``attempt`` finds for each of ``plan``. A process in which something was wrong is not used again."""
    done = 0
    while done < len(plan):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _child(plan[done:], make, attempt, os.fdopen(write, "w"))
        os.close(write)
        with os.fdopen(read) as stream:
            for line in stream:
                done += 1
                yield Found(**json.loads(line))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0 and done < len(plan):
            yield Found(str(plan[done]), "", "died", [], f"the process ended with {status}")
            done += 1


def _child(plan: list[Any], make: Callable[[], Trial], attempt: Callable[[Trial, Any], Found], stream: Any) -> None:
    messages = os.fdopen(os.dup(2), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the compiler logs
    try:
        tried = make()
        for each in plan:
            signal.alarm(SECONDS_FOR_ONE)
            found = attempt(tried, each)
            stream.write(json.dumps(dataclasses.asdict(found)) + "\n")
            stream.flush()
            if found.left or found.fault:
                break
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=messages)
        messages.flush()
        os._exit(3)


def seconds_of(make: Callable[[], Trial]) -> float:
    """Time of the processor that a run takes."""
    return make().seconds()


def planned(
    make: Callable[[], Trial], count: int, generator: random.Random, files: list[str]
) -> list[tuple[Event, str]]:
    """The injections: ``count`` of those at events in ``files``, or in all files if there are none."""
    events = [event for event in moments(make().events()) if not files or os.path.basename(event.file) in files]
    every = [(event, kind) for event in events for kind in KINDS]
    return every if count >= len(every) else generator.sample(every, count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--timer", action="store_true", help="interrupts at random times in the place of injections")
    parser.add_argument("--programs", nargs="+", choices=SHARES, default=list(SHARES))
    parser.add_argument("--files", nargs="+", default=[], help="only events in files of these names")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: list[tuple[str, Found]] = []
    whole = sum(SHARES[choice] for choice in options.programs)
    tempfile.tempdir = tempfile.mkdtemp(prefix="torch-faults-")
    for choice in options.programs:
        make = functools.partial(trial, choice, not options.stock)
        number, generator = options.count * SHARES[choice] // whole, random.Random(options.seed)
        if options.timer:
            limit = in_child(functools.partial(seconds_of, make))
            results = in_children([generator.uniform(0, limit) for _ in range(number)], make, Trial.interrupt)
        else:
            plan = in_child(functools.partial(planned, make, number, generator, options.files))
            print(f"{choice}: {len({e for e, _ in plan})} events, {len(plan)} injections", flush=True)
            results = in_children(plan, make, lambda tried, each: tried.inject(*each))

        for one in results:
            found.append((choice, one))
            if one.is_bad:
                print(
                    "  ",
                    one.kind,
                    one.event,
                    one.outcome,
                    one.left[:6],
                    one.fault,
                    *one.where[-4:],
                    sep=" | ",
                    flush=True,
                )
            if options.out:
                with options.out.open("a") as stream:
                    stream.write(json.dumps({"program": choice, **dataclasses.asdict(one)}) + "\n")
    print_table(found)
    return int(any(one.is_bad for _, one in found))


def print_table(found: list[tuple[str, Found]]) -> None:
    """Outcomes by kind of exception."""
    columns = [
        "raised as itself",
        "raised as another",
        "absorbed",
        "not reached",
        "left as in stock",
        "state left",
        "other faults",
    ]
    print("| kind | injections | " + " | ".join(columns) + " |")
    print("|" + "---|" * (len(columns) + 2))
    for kind in KINDS:
        counts: collections.Counter[str] = collections.Counter()
        of_kind = [one for _, one in found if one.kind == kind]
        for one in of_kind:
            counts["raised as itself" if one.outcome == kind else _column(one.outcome)] += 1
            counts["left as in stock"] += one.is_stocks
            counts["state left"] += bool(one.left) and not one.is_stocks
            counts["other faults"] += bool(one.fault)
        print(f"| {kind} | {len(of_kind)} | " + " | ".join(str(counts[c]) for c in columns) + " |")


def _column(outcome: str) -> str:
    return outcome if outcome in ("absorbed", "not reached") else "raised as another"


if __name__ == "__main__":
    raise SystemExit(main())
