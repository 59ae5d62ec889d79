"""What stands at a source is what evaluating its text gives, for sources of every kind that is not evaluated."""

import collections

import pytest
import torch
from torch import nn
from torch._dynamo.source import (
    AttrSource,
    DictGetItemSource,
    GetItemSource,
    LocalSource,
    NNModuleSource,
    ParamBufferSource,
    TypeSource,
    UnspecializedNNModuleSource,
    UnspecializedParamBufferSource,
)

from torch_regions.overlay import stock


# What is tested runs for programs with regions only.
pytestmark = pytest.mark.usefixtures("with_regions")


class Told:
    """Answers for any attribute."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        self.asked.append(name)
        return len(self.asked)


HELD = {
    "linear": nn.Linear(2, 2),
    "items": [3, 4, 5],
    "dict": {"a b": 1, 1: 2, (1, 2): 5},
    "default": collections.defaultdict(list, a=[1]),
    "told": Told(),
}
HELD["linear"].scale = 2.0
setattr(HELD["linear"], "odd name", 7)


def at(name):
    return LocalSource(name)


SOURCES = {
    "attribute": AttrSource(at("linear"), "scale"),
    "odd attribute": AttrSource(at("linear"), "odd name"),
    "of a class": AttrSource(TypeSource(at("linear")), "forward"),
    "parameter": ParamBufferSource(at("linear"), "weight"),
    "parameter of a module": UnspecializedParamBufferSource(UnspecializedNNModuleSource(at("linear")), "bias"),
    "held parameter": DictGetItemSource(AttrSource(at("linear"), "_parameters"), "weight"),
    "module": NNModuleSource(at("linear")),
    "item": GetItemSource(at("items"), 1),
    "last": GetItemSource(at("items"), -1),
    "slice": GetItemSource(at("items"), slice(0, 2)),
    "text": DictGetItemSource(at("dict"), "a b"),
    "number": DictGetItemSource(at("dict"), 1),
    "tuple": DictGetItemSource(at("dict"), (1, 2)),
    "default": DictGetItemSource(at("default"), "a"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_the_value_is_that_of_the_text(kind):
    source = SOURCES[kind]
    scope = {"L": HELD, "G": {}}
    cache: dict = {}
    found = source.get_value(scope, {}, cache)
    wanted = eval(source.name, scope)
    assert found is wanted or found == wanted
    assert type(found) is type(wanted)
    assert cache[source] is found
    assert source.get_value({}, {}, cache) is found


@pytest.mark.parametrize("source", [AttrSource(at("linear"), "nothing"), GetItemSource(at("items"), 9)])
def test_what_is_not_there_raises_what_the_text_raises(source):
    scope = {"L": HELD, "G": {}}
    with pytest.raises((AttributeError, IndexError)) as found:
        source.get_value(scope, {}, {})
    with pytest.raises(found.type):
        stock("torch._guards:ChainedSource.get_value")(source, scope, {}, {})


def test_code_of_the_program_runs_as_often_as_for_the_text():
    told, cache = Told(), {}
    scope = {"L": {"told": told}, "G": {}}
    source = AttrSource(at("told"), "anything")
    assert [source.get_value(scope, {}, cache) for _ in range(3)] == [1, 1, 1]
    assert told.asked == ["anything"]


def test_tensors_are_found():
    value = UnspecializedParamBufferSource(at("linear"), "weight").get_value({"L": HELD, "G": {}}, {}, {})
    assert isinstance(value, torch.nn.Parameter)


def test_the_built_in_method_that_a_text_names_is_not_the_programs():
    """A list's element and a plain attribute were found by the program's ``__getitem__`` and ``__getattribute__``."""
    from torch._dynamo.source import GenericAttrSource, ListGetItemSource

    class Loud(list):
        def __getitem__(self, index):
            raise AssertionError("code of the program was run")

    class Asked:
        def __getattribute__(self, name):
            raise AssertionError("code of the program was run")

    asked = Asked()
    object.__setattr__(asked, "k", 3)
    there = {"loud": Loud([5]), "asked": asked}
    for source, value in (
        (ListGetItemSource(LocalSource("loud"), 0), 5),
        (GenericAttrSource(LocalSource("asked"), "k"), 3),
    ):
        assert source.get_value({"L": there}, {}, {}) == value
