"""A source made of a skeleton is the one that Dynamo makes; what is precomputed of an entry finds what it stands for."""

from __future__ import annotations

import collections
import dataclasses

import pytest
import torch
import torch._dynamo
from torch._dynamo import source as sources
from torch._dynamo.regions.trace.guard_facts import GuardFact, is_implied
from torch._dynamo.regions.trace.objects import attribute_of
from torch._dynamo.regions.trace.plan import _class_of_holder
from torch._dynamo.regions.trace.skeleton import _KINDS, skeleton_of
from torch._dynamo.regions.trace.sources import field_names
from torch._dynamo.regions.trace.unguarded import unguarded_state


OLD = sources.LocalSource("old")
NEW = sources.AttrSource(sources.LocalSource("new"), "layer")
MADE = {
    sources.AttrSource: lambda base: sources.AttrSource(base, "weight"),
    sources.UnspecializedParamBufferSource: lambda base: sources.UnspecializedParamBufferSource(base, "not a name"),
    sources.DictGetItemSource: lambda base: sources.DictGetItemSource(base, "{0}"),
}


def _make(kind, base):
    return MADE.get(kind, kind)(base)


@pytest.mark.parametrize("asked", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("kind", _KINDS)
def test_a_source_behind_another_base_is_the_one_that_dynamo_makes(kind, asked) -> None:
    base = dataclasses.replace(NEW)
    if asked:
        _ = base.name, base.guard_source
    old = _make(kind, OLD)
    made, expected = skeleton_of(old).behind(base), dataclasses.replace(old, base=base)
    assert type(made) is type(expected) and made == expected and hash(made) == hash(expected)
    assert made.name == expected.name and made.guard_source is expected.guard_source
    for name in field_names(kind):
        assert getattr(made, name) == getattr(expected, name)
    assert made.base is base


def test_a_source_of_other_sources_has_no_skeleton() -> None:
    key = sources.ConstDictKeySource(OLD, 0)
    assert skeleton_of(sources.DictGetItemSource(OLD, key)) is None
    assert skeleton_of(sources.CellContentsSource(OLD, "cell_contents")) is None
    assert skeleton_of(OLD) is None


class Described:
    kind = property(lambda self: "found by the class")
    other = "of the class"

    def __init__(self) -> None:
        vars(self).update(kind="hidden", own=1, other="of the object")


def test_an_attribute_is_found_in_the_object_only_where_its_class_has_no_say() -> None:
    held = Described()
    assert _class_of_holder(held, "own") is _class_of_holder(held, "other") is Described
    assert attribute_of(held, "other") == "of the object"
    assert _class_of_holder(held, "kind") is None
    assert _class_of_holder(held, "absent") is None
    assert _class_of_holder(Described, "other") is None
    module = torch.nn.Linear(2, 2)
    assert _class_of_holder(module, "_parameters") is torch.nn.Linear
    assert _class_of_holder(module, "weight") is None


class Hooks(collections.OrderedDict):
    pass


def _values():
    plain, other, hooked = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    other.forward = lambda x: x
    hooked.register_forward_hook(lambda *_: None)
    ordered = collections.OrderedDict(a=1)
    noted = collections.OrderedDict()
    noted.note = 1
    empty = (collections.OrderedDict(), Hooks(), {}, noted)
    return [plain, other, hooked, torch.nn.ReLU(), ordered, *empty, [], (), Described(), torch.ones(2), Described]


@pytest.mark.parametrize("kind", ["TYPE_MATCH", "EMPTY_NN_MODULE_HOOKS_DICT", "NOT_PRESENT_IN_GENERIC_DICT"])
def test_a_fact_that_is_left_out_follows_from_the_state(kind) -> None:
    """Whatever object has the state of another one, the fact holds of both."""
    seen = 0
    for value in _values():
        make = lambda builder, guard: None  # noqa: E731
        make.keywords = {"attr": "forward"}
        try:
            fact = GuardFact(OLD, kind, make, value, False)
        except Exception:
            continue  # no such guard is made of it
        if is_implied(fact, value):
            seen += 1
            alike = [other for other in _values() if unguarded_state(other) == unguarded_state(value)]
            assert all(fact.holds(other) for other in (value, *alike))
    assert seen
