"""Runs a replacement only while a program with regions is compiled; otherwise stock's function runs.

A switched stock function keeps its identity and its holders; only its `__code__` changes. While some thread compiles a
program with regions, the code is a step that calls ours in such a thread and stock's in others. At all other times the
code is stock's own. So a process that compiles no regions runs stock's functions without one more call or frame, and
`inspect` finds no difference.

`torch/_dynamo/regions/switch.py` reports when a compile has regions.
"""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch_regions._faults as _faults
from torch_regions._held import Box


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# The overlay's module that reports compiles with regions
MODULE = "torch._dynamo.regions.switch"
# Modules of reports that are to hear of compiles, where this process has imported them
_LISTENERS = ("torch_regions._report.record", "torch_regions._report.progress")


class _Local(threading.local):
    on = False


_local = _Local()
_lock = threading.RLock()
# Threads that compile a program with regions
_threads_on: set[int] = set()
# Whether the switched functions have the step as their code; None while that is being changed
_asking: bool | None = False
# Called before a program with regions is compiled
_before: Callable[[], None] | None = None
# "module:symbol" -> what is switched there
_switched: dict[str, Switched] = {}


def _step(free: tuple[str, ...]) -> CodeType:
    """Code that calls one of two functions; `free` are the free variables of the function that gets this code."""
    names = ", ".join(free)
    nonlocal_ = f"nonlocal {names}; " if free else ""
    bound = f"{' = '.join(free)} = None; " if free else ""
    scope: dict[str, Any] = {}
    exec(
        f"def make():\n {bound or 'pass'}\n def step(*args, **kwargs): {nonlocal_}"
        "return ('ours' if 'local'.on else 'stock'.value)(*args, **kwargs)\n return step",
        scope,
    )
    code: CodeType = scope["make"]().__code__
    return code


class Switched:
    """A stock function and the one that runs in its place while this thread compiles a program with regions."""

    def __init__(self, place: FunctionType, ours: Any) -> None:
        self.place = Box(place)
        self.ours = ours
        self.code = place.__code__
        copy = FunctionType(place.__code__, place.__globals__, place.__name__, place.__defaults__, place.__closure__)
        copy.__kwdefaults__ = place.__kwdefaults__
        copy.__qualname__, copy.__module__, copy.__doc__ = place.__qualname__, place.__module__, place.__doc__
        copy.__dict__.update(place.__dict__)
        # What `stock()` returns: stock's function, whatever the switch says.
        self.stock = Box(copy)
        step = _step(place.__code__.co_freevars)
        known = {"ours": ours, "local": _local, "stock": self.stock}
        consts = tuple(known.get(each, each) if isinstance(each, str) else each for each in step.co_consts)
        # Dynamo judges code by its file, and tracebacks show it: the step has stock's file, line and name.
        self.step = step.replace(
            co_consts=consts,
            co_filename=self.code.co_filename,
            co_firstlineno=self.code.co_firstlineno,
            co_name=self.code.co_name,
        )

    def set(self, on: bool) -> None:
        self.place.value.__code__ = self.step if on else self.code


def add(target: str, place: FunctionType, ours: Any) -> Switched:
    """Run `ours` instead of the stock function `place` while a thread compiles regions."""
    with _lock:
        made = _switched[target] = Switched(place, ours)
        made.set(bool(_threads_on))
    return made


def remove(target: str) -> None:
    """Undo `add`, if it was completed."""
    with _lock:
        found = _switched.pop(target, None)
        if found is not None:
            found.set(False)


def switched() -> dict[str, Any]:
    """Target -> what runs while regions are compiled."""
    return {target: each.ours for target, each in _switched.items()}


def turn(on: bool) -> None:
    """Record whether this thread compiles a program with regions from now on.

    Every step may be repeated, so the next call completes one that was interrupted.
    """
    thread = threading.get_ident()
    if _local.on is on and (thread in _threads_on) is on and _asking is bool(_threads_on):
        return
    if on and _before is not None:
        _before()
    with _lock:
        (_threads_on.add if on else _threads_on.discard)(thread)
        _local.on = on
        _place()


def _place() -> None:
    """Give the switched functions the step if any thread compiles regions, else stock's code."""
    global _asking
    wanted = bool(_threads_on)
    if _asking is not wanted:
        _asking = None
        for each in _switched.values():
            each.set(wanted)
        _asking = wanted


def before_regions(call: Callable[[], None] | None) -> None:
    """Set the function that is called each time that a thread begins to compile a program with regions."""
    global _before
    _before = call


def listen(module: ModuleType) -> None:
    """Subscribe to compiles with regions and to errors in the overlay's module."""
    module.ON_CHANGE.append(turn)
    module.ON_ERROR.append(_faults.name_the_overlay)
    for name in _LISTENERS:
        listener = sys.modules.get(name)
        if listener is not None:
            listener.listen(module)


def _after_fork() -> None:
    """The child has one thread, the one that forked; compiles of the other threads do not go on there."""
    global _lock
    _lock = threading.RLock()
    _threads_on.intersection_update({threading.get_ident()})
    _place()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
