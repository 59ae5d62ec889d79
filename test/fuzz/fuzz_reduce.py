"""Makes a failing program smaller: leaves out one thing after the other as long as it fails in the same way.

Hypothesis draws the programs. It would shrink the choices behind them, of which most say nothing; a program has some
twenty parts, and leaving out a part is one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from fuzz_program import Between, Change, Program, Thing


T = TypeVar("T")


def _without(items: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    for n in range(len(items)):
        yield items[:n] + items[n + 1 :]


def _without_thing(program: Program, gone: int) -> Program:
    """Objects behind the one that goes get another number, and what is done to it goes too."""

    def kept(items: tuple[T, ...]) -> tuple[T, ...]:
        found = []
        for item in items:
            assert isinstance(item, (Between, Change))
            if item.thing != gone:
                found.append(replace(item, thing=item.thing - (item.thing > gone)))
        return tuple(found)

    things = program.things[:gone] + program.things[gone + 1 :]
    return replace(
        program, things=things, between=kept(program.between), changes=tuple(kept(step) for step in program.changes)
    )


def _with_thing(program: Program, number: int, thing: Thing) -> Program:
    return replace(program, things=(*program.things[:number], thing, *program.things[number + 1 :]))


def _steps(program: Program) -> Iterator[Program]:
    """Without a call, or without a change between two."""
    for number, step in enumerate(program.changes):
        batches = program.batches[: number + 1] + program.batches[number + 2 :]
        yield replace(program, changes=program.changes[:number] + program.changes[number + 1 :], batches=batches)
        for fewer in _without(step):
            yield replace(program, changes=(*program.changes[:number], fewer, *program.changes[number + 1 :]))


def _things(program: Program) -> Iterator[Program]:
    for number, thing in enumerate(program.things):
        yield _without_thing(program, number)
        for uses in _without(thing.uses):
            yield _with_thing(program, number, replace(thing, uses=uses))
        for uses in _without(thing.at_root):
            yield _with_thing(program, number, replace(thing, at_root=uses))
        layers = len(thing.pattern)
        for simpler in (
            replace(thing, held="attribute"),
            replace(thing, values=thing.values[:1], pattern=(0,) * layers),
            replace(thing, pattern=(0,) * layers),
            replace(thing, values=thing.values[:2], pattern=tuple(i % 2 for i in range(layers))),
        ):
            yield _with_thing(program, number, simpler)


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less than ``program``."""
    yield from _steps(program)
    yield from (replace(program, between=fewer) for fewer in _without(program.between))
    yield from _things(program)
    if len(program.parts) > 1:
        yield replace(program, parts=program.parts[:1], classes=(0,) * program.layers)
    for number, parts in enumerate(program.parts):
        for fewer in _without(parts):
            yield replace(program, parts=(*program.parts[:number], fewer, *program.parts[number + 1 :]))
    if program.layers > 3:
        things = tuple(replace(thing, pattern=thing.pattern[:3]) for thing in program.things)
        yield replace(program, classes=program.classes[:3], things=things)
    yield replace(program, container="module_list")
    yield replace(program, form="forward")
    yield replace(program, batches=(2,) * len(program.batches))
    yield replace(program, dynamic=False)
    yield replace(program, grad=False)
    yield replace(program, training=True)


def reduce(program: Program, fails: Callable[[Program], bool], tries: int) -> Program:
    """A program that ``fails`` of which no smaller one does, unless that takes more than ``tries``."""
    seen = {program}
    while True:
        for candidate in smaller(program):
            if candidate in seen:
                continue
            seen.add(candidate)
            if tries == 0:
                return program
            tries -= 1
            if fails(candidate):
                program = candidate
                break
        else:
            return program
