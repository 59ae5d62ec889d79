"""Objects of every kind that layers may share, and how a layer reads each of them."""

import collections
import enum
import functools
import types
import typing

import torch


class Plain:
    def __init__(self, k):
        self.k = k


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


class Named(typing.NamedTuple):
    k: float


class Colour(enum.Enum):
    RED = 2.0
    BLUE = 3.0


class Whole(int):
    pass


class Word(str):
    pass


class Pair(tuple):
    pass


class Sub(torch.nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k


def _function(k):
    def scaled(x, by=k):
        return x * by

    return scaled


def _module(k):
    made = types.ModuleType("made")
    made.k = k
    return made


def _class(k):
    return type("Made", (), {"k": k})


# kind -> how one is made of a number, and how a layer that holds it as ``held`` uses it
KINDS = {
    "plain object": (Plain, lambda held, x: x * held.k),
    "slotted object": (Slotted, lambda held, x: x * held.k),
    "sentinel": (lambda k: object(), lambda held, x: x),
    "named tuple": (Named, lambda held, x: x * held.k),
    "enum member": (Colour, lambda held, x: x * held.value),
    "int subclass": (lambda k: Whole(k), lambda held, x: x * int(held)),
    "str subclass": (lambda k: Word("a" * int(k)), lambda held, x: x * len(held)),
    "tuple subclass": (lambda k: Pair((k,)), lambda held, x: x * held[0]),
    "partial": (lambda k: functools.partial(torch.mul, other=k), lambda held, x: held(x)),
    "mapping proxy": (lambda k: types.MappingProxyType({"k": k}), lambda held, x: x * held["k"]),
    "bound method": (lambda k: Plain(k).__class__.__repr__ and _Bound(k).apply, lambda held, x: held(x)),
    "class": (_class, lambda held, x: x * held.k),
    "python module": (_module, lambda held, x: x * held.k),
    "function": (_function, lambda held, x: held(x)),
    "nn.Module": (Sub, lambda held, x: x * held.k),
    "parameter": (lambda k: torch.nn.Parameter(torch.full((3,), k)), lambda held, x: x * held),
    "tensor": (lambda k: torch.full((3,), k), lambda held, x: x * held),
    "list": (lambda k: [k], lambda held, x: x * held[0]),
    "dict": (lambda k: {"k": k}, lambda held, x: x * held["k"]),
    "ordered dict": (lambda k: collections.OrderedDict(k=k), lambda held, x: x * held["k"]),
    "deque": (lambda k: collections.deque([k]), lambda held, x: x * held[0]),
    "namespace": (lambda k: types.SimpleNamespace(k=k), lambda held, x: x * held.k),
    "generator": (lambda k: torch.Generator(), lambda held, x: x),
    "lru cache": (lambda k: functools.lru_cache(_Scale(k).number), lambda held, x: x * held()),
}


class _Bound:
    def __init__(self, k):
        self.k = k

    def apply(self, x):
        return x * self.k


class _Scale:
    def __init__(self, k):
        self.k = k

    def number(self):
        return self.k
