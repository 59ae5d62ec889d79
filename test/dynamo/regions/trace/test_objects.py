"""Reads of the program's objects: right answers, and none of the program's code is run."""

import collections
import types

import pytest
import torch
from torch._dynamo.regions.trace.objects import (
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
)
from torch._dynamo.regions.trace.unguarded import unguarded_state


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


class AskedClass(type):
    def __getattribute__(cls, name):
        if name == "__mro__":
            raise AssertionError("code of the program was run")
        return type.__getattribute__(cls, name)


AskedClass = AskedClass("AskedClass", (), {"k": 1})


class Meta(type):
    prop = Asked.__dict__["prop"]


class OfClass(metaclass=Meta):
    pass


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
    [(Asked(), "prop"), (Asked(), "missing"), (OfClass, "prop"), (AskedClass, "k")],
    ids=["property", "no attribute", "property of a class", "any of a class"],
)
def test_what_only_code_of_the_program_can_tell_is_refused(value, name):
    with pytest.raises(RunsCode):
        attribute_of(value, name)
    if isinstance(value, type):
        with pytest.raises(RunsCode):
            has_attribute(value, name)


def test_that_an_attribute_is_there_is_told_by_the_code_that_finds_it():
    """Dynamo traces that code: what it reads is compared on its own."""

    class Other(Asked):
        prop = property(lambda self: 1)

    assert has_attribute(Asked(), "prop") == has_attribute(Asked(), "prop") != has_attribute(Other(), "prop")
    assert has_attribute(Asked(), "missing") == has_attribute(Other(), "missing") != has_attribute(Asked(), "prop")
    assert has_attribute(AskedForAll(), "k") == has_attribute(AskedForAll(), "k") != has_attribute(Slots(), "k")
    there = AskedForAll()
    object.__setattr__(there, "own", 1)
    assert has_attribute(there, "own") != has_attribute(AskedForAll(), "own")


def test_an_attribute_is_found_beside_a_getattribute_of_the_program():
    """It made every block that reads a configuration of transformers be traced: they all have one."""
    value = AskedForAll()
    object.__setattr__(value, "own", 5)
    assert attribute_of(value, "own") == 5 and attribute_of(value, "k") == 1
    with pytest.raises(AttributeError):
        attribute_of(value, "missing")


class LoudTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("code of the program was run")


def test_an_attribute_of_a_tensor_is_read_without_its_torch_function():
    with torch._C.DisableTorchFunctionSubclass():
        value = torch.ones(2, requires_grad=True).as_subclass(LoudTensor)
    assert attribute_of(value, "requires_grad") is True and has_attribute(value, "grad_fn") is True


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
