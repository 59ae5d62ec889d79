"""A program as a small value: what the strategies draw, what a find is written as, and what text is printed from."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Use:
    """A question that a layer or the model's loop asks of a shared object."""

    statement: str  # a template of the object's kind
    through: str  # self, global, cell, default or root: by which way the object is reached
    number: int  # which object of the pool is meant by global, cell, default and {o}


@dataclass(frozen=True)
class Thing:
    """Objects of one kind that layers hold."""

    kind: str
    values: tuple[float, ...]  # one for each object of the pool
    held: str  # attribute, item, key, inner or module: how a layer holds its object
    pattern: tuple[int, ...]  # for each layer, the number of its object; -1 is one of its own
    uses: tuple[Use, ...]
    at_root: tuple[Use, ...]  # asked in the model's forward, before the loop if the number is even


@dataclass(frozen=True)
class Change:
    """What happens between two calls of the model: of a shared object if ``thing`` is not -1."""

    what: str  # replace, replace_fresh, rebind, or a key of CHANGES, or a template of the kind
    thing: int
    i: int
    j: int


@dataclass(frozen=True)
class Between:
    """What the model's loop does before its call number ``at``, to layer ``j``."""

    what: str
    thing: int
    at: int
    j: int


@dataclass(frozen=True)
class Program:
    """A model of ``len(classes)`` layers, what is called, and what changes between the calls."""

    form: str  # forward, function, method, helper or a key of RESULTS: what is marked
    container: str  # module_list, list, dict, module_dict, tuple, once, sequential or attributes
    classes: tuple[int, ...]  # the class of each layer
    parts: tuple[tuple[str, ...], ...]  # the parts of each class
    things: tuple[Thing, ...]
    between: tuple[Between, ...]
    changes: tuple[tuple[Change, ...], ...]  # before the second call, before the third
    batches: tuple[int, ...]  # the size of the batch in each call
    input_grad: bool
    training: bool
    grad: bool  # whether the model is called with grad mode on
    dynamic: bool  # whether the batch is marked as dynamic

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @property
    def layers(self) -> int:
        return len(self.classes)


def tags(program: Program) -> frozenset[str]:
    """What a program consists of: two finds of one kind of failure are told apart by these."""
    found: set[str] = {f"part {program.form}"} if program.form.startswith("result_") else set()
    for parts in program.parts:
        found.update(f"part {name}" for name in parts)
    for thing in program.things:
        found.add(f"kind {thing.kind}")
        found.update(f"through {use.through}" for use in (*thing.uses, *thing.at_root) if use.through != "self")
    found.update(f"between {b.what}" for b in program.between)
    found.update(f"change {c.what}" for step in program.changes for c in step if c.what != "none")
    return frozenset(found)


def from_json(text: str) -> Program:
    data: dict[str, Any] = json.loads(text)
    uses = lambda rows: tuple(Use(**row) for row in rows)  # noqa: E731
    data["things"] = tuple(
        Thing(
            **{
                **t,
                "values": tuple(t["values"]),
                "pattern": tuple(t["pattern"]),
                "uses": uses(t["uses"]),
                "at_root": uses(t["at_root"]),
            }
        )
        for t in data["things"]
    )
    data["between"] = tuple(Between(**b) for b in data["between"])
    data["changes"] = tuple(tuple(Change(**c) for c in step) for step in data["changes"])
    data["parts"] = tuple(map(tuple, data["parts"]))
    return Program(**{**data, "classes": tuple(data["classes"]), "batches": tuple(data["batches"])})
