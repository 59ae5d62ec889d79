"""Lets a replacement run only while a program with regions is compiled; else stock's function is what it was.

A stock function that is switched stays where it is, with its identity and all who hold it. While some thread compiles a
program with regions, its code is a step that asks which of the two this thread wants; for the rest of the time its
code is stock's own. So a process that compiles no regions runs stock's functions with nothing in front of them: no call
more, no frame more in a stack, and nothing to find by `inspect`.

The overlay says in `torch/_dynamo/regions/switch.py` when a compile has regions.
"""

from __future__ import annotations

import os
import threading
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch_regions._faults as _faults
from torch_regions._held import Box


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# The overlay's module that tells of compiles with regions.
MODULE = "torch._dynamo.regions.switch"


class _Local(threading.local):
    on = False


_local = _Local()
_lock = threading.RLock()
# Threads that compile a program with regions
_threads_on: set[int] = set()
# Whether the functions that are switched have the code that asks; None while it is being changed
_asking: bool | None = False
# What is called before a program with regions is compiled
_before: Callable[[], None] | None = None
# "module:symbol" -> what is switched there
_switched: dict[str, Switched] = {}


def _step(free: tuple[str, ...]) -> CodeType:
    """Code that calls one of two functions, with the free variables that the function it is given to has."""
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
        # What the overlay reaches by `stock`: it is stock's whatever the switch says.
        self.stock = Box(copy)
        step = _step(place.__code__.co_freevars)
        known = {"ours": ours, "local": _local, "stock": self.stock}
        consts = tuple(known.get(each, each) if isinstance(each, str) else each for each in step.co_consts)
        # The step is judged by the file that it stands in, and shows as a line of it.
        self.step = step.replace(
            co_consts=consts,
            co_filename=self.code.co_filename,
            co_firstlineno=self.code.co_firstlineno,
            co_name=self.code.co_name,
        )

    def set(self, on: bool) -> None:
        self.place.value.__code__ = self.step if on else self.code


def add(target: str, place: FunctionType, ours: Any) -> Switched:
    """Let `ours` run in the place of the stock function `place` while regions are compiled."""
    with _lock:
        made = _switched[target] = Switched(place, ours)
        made.set(bool(_threads_on))
    return made


def remove(target: str) -> None:
    """Undo `add`, if it came to anything."""
    with _lock:
        found = _switched.pop(target, None)
        if found is not None:
            found.set(False)


def switched() -> dict[str, Any]:
    """What runs while regions are compiled, by target."""
    return {target: each.ours for target, each in _switched.items()}


def turn(on: bool) -> None:
    """Say whether this thread compiles a program with regions from now on.

    Each step may be done twice: after an interrupt in between, the next call does what is left.
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
    """Give the functions that are switched the code for as many threads as there are."""
    global _asking
    wanted = bool(_threads_on)
    if _asking is not wanted:
        _asking = None
        for each in _switched.values():
            each.set(wanted)
        _asking = wanted


def before_regions(call: Callable[[], None] | None) -> None:
    """What is called each time that a thread begins to compile a program with regions."""
    global _before
    _before = call


def listen(module: ModuleType) -> None:
    """Be told by the overlay's module of compiles with regions, and of errors."""
    module.ON_CHANGE.append(turn)
    module.ON_ERROR.append(_faults.name_the_overlay)


def _after_fork() -> None:
    """A child has one thread, the one that forked; the others' compiles are not its own."""
    global _lock
    _lock = threading.RLock()
    _threads_on.intersection_update({threading.get_ident()})
    _place()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
