"""Reads of the program's objects: right answers, and none of the program's code is run."""

import collections
import types

import pytest
import torch
from torch._dynamo.region_objects import (
    MISSING,
    RunsCode,
    attribute_of,
    base_constant,
    contains,
    find_in_class,
    has_attribute,
    item_of,
    keys_of,
    length_of,
    modules_of,
    own_attributes,
    unguarded_state,
)


class Loud:
    """Fails whenever one of its methods is run."""

    def _fail(self, *_):
        raise AssertionError("code of the program was run")

    __repr__ = __str__ = __len__ = __bool__ = __iter__ = __eq__ = __hash__ = __contains__ = _fail
    __getitem__ = keys = values = items = _fail


class LoudDict(Loud, dict):
    pass


class LoudList(Loud, list):
    pass


class LoudTuple(Loud, tuple):
    pass


class LoudSet(Loud, set):
    pass


class LoudInt(Loud, int):
    pass


class LoudModule(torch.nn.Module):
    children = modules = parameters = named_parameters = buffers = named_modules = Loud._fail

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)


class Asked:
    @property
    def prop(self):
        raise AssertionError("code of the program was run")

    def __getattr__(self, name):
        raise AssertionError("code of the program was run")


class AskedForAll:
    k = 1

    def __getattribute__(self, name):
        raise AssertionError("code of the program was run")


def test_containers_of_the_programs_classes_are_read_without_their_methods():
    assert item_of(LoudDict(a=1), "a") == 1 and item_of(LoudList([5]), 0) == 5 and item_of(LoudTuple((6,)), 0) == 6
    assert keys_of(LoudDict(a=1, b=2)) == ("a", "b") and keys_of(LoudSet()) == ()
    assert [length_of(v) for v in (LoudDict(a=1), LoudList([1, 2]), LoudTuple(), LoudSet())] == [1, 2, 0, 0]
    assert contains(LoudDict(a=1), "a") and not contains(LoudDict(a=1), "b")
    assert base_constant(LoudInt(3)) == base_constant(LoudInt(3)) != base_constant(LoudInt(4))
    assert unguarded_state(LoudDict(a=1)) == unguarded_state(LoudDict(a=2)) != unguarded_state(LoudDict(b=1))
    unguarded_state(LoudList([1])), unguarded_state(LoudModule())


def test_modules_are_read_by_their_private_dictionaries():
    module = LoudModule()
    assert list(modules_of(module)) == [module.linear]
    module.children = [1, 2]
    assert own_attributes(module)["children"] == [1, 2] and list(modules_of(module)) == [module.linear]


@pytest.mark.parametrize(
    "value, name",
    [(Asked(), "prop"), (Asked(), "missing"), (AskedForAll(), "k")],
    ids=["property", "no attribute", "any"],
)
def test_what_only_code_of_the_program_can_tell_is_refused(value, name):
    with pytest.raises(RunsCode):
        attribute_of(value, name)
    with pytest.raises(RunsCode):
        has_attribute(value, name)


def test_a_property_comes_before_the_objects_own():
    value = Asked()
    value.__dict__["prop"] = 1
    with pytest.raises(RunsCode):
        attribute_of(value, "prop")


class Slots:
    __slots__ = ("k",)

    def method(self):
        return 1


@pytest.mark.parametrize("name", ["k", "method", "__class__", "__slots__", "missing"])
def test_attributes_are_those_that_getattr_finds(name):
    value = Slots()
    value.k = 3
    if name == "missing":
        assert not has_attribute(value, name)
    else:
        assert attribute_of(value, name) == getattr(value, name)
    assert (find_in_class(Slots, name) is MISSING) == (name == "missing")


def test_attributes_of_modules_classes_and_functions():
    linear = torch.nn.Linear(2, 2)
    for name in ("weight", "in_features", "forward", "_parameters", "training"):
        found = attribute_of(linear, name)
        assert found is getattr(linear, name) or found == getattr(linear, name)
    assert attribute_of(torch, "nn") is torch.nn
    assert attribute_of(Slots, "method") is Slots.method
    assert attribute_of(test_a_property_comes_before_the_objects_own, "__code__").co_name.startswith("test_a_property")


def test_a_missing_key_is_no_new_key():
    found = collections.defaultdict(list)
    with pytest.raises(KeyError):
        item_of(found, "a")
    assert not found


def test_an_ordered_dicts_own_order_counts():
    one, other = (collections.OrderedDict(a=1, b=2) for _ in range(2))
    other.move_to_end("a")
    assert unguarded_state(one) != unguarded_state(other)


def test_a_mapping_that_is_no_dict_is_read_by_its_class():
    assert item_of(types.MappingProxyType({"k": 2}), "k") == 2
