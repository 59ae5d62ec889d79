"""The interface for overlay files: `replaces` marks a replacement, `stock` returns what it replaced."""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, TypeVar, overload

from torch_regions._held import Box, Snapshot


T = TypeVar("T")

# "module:symbol" -> the stock object that was replaced
_stock: dict[str, Box] = {}
_local = threading.local()


class Marker:
    """Takes the place, in the namespace, of a function that was marked as the replacement of a class attribute."""

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise TypeError(f"this definition replaces {self.symbol}; call that instead")


class Recorder:
    """Collects the marks while one overlay file is executed."""

    def __init__(self, module: ModuleType, left_out: frozenset[str] = frozenset()) -> None:
        self.module = module
        # Targets that stay stock's; the installed release need not have them
        self.left_out = left_out
        self.unmatched: set[str] = set()
        self.before = Snapshot(module.__dict__)
        self.marked: dict[str, Any] = {}

    def __enter__(self) -> Recorder:
        self._outer = getattr(_local, "recorder", None)
        _local.recorder = self
        return self

    def __exit__(self, *exc: object) -> None:
        _local.recorder = self._outer

    def mark(self, symbol: str, new: Any) -> None:
        name = self.module.__name__
        if symbol in self.marked:
            raise TypeError(f"{name}: {symbol} is replaced twice")
        if lookup(self.before, symbol) is None:
            if f"{name}:{symbol}" in self.left_out:
                self.unmatched.add(symbol)
                return
            raise TypeError(f"{name}: stock has no {symbol} of its own to replace")
        self.marked[symbol] = new


def lookup(namespace: dict[str, Any], symbol: str) -> Any:
    """The object that `symbol` names, unbound, as it is in its class; None if there is none."""
    first, *rest = symbol.split(".")
    found = namespace.get(first)
    for part in rest:
        found = vars(found).get(part) if isinstance(found, type) else None
    return found


def _mark(new: Any, symbol: str) -> Any:
    recorder = getattr(_local, "recorder", None)
    if recorder is None:
        # A tool imports the file, not the loader: the definition stays unchanged.
        return new
    if isinstance(new, Marker):
        raise TypeError(f"one definition cannot replace both {new.symbol} and {symbol}")
    recorder.mark(symbol, new)
    if "." not in symbol:
        return new
    function = getattr(new, "__func__", new)
    if isinstance(function, FunctionType):
        function.__qualname__ = symbol
        function.__name__ = symbol.rpartition(".")[2]
    return Marker(symbol)


@overload
def replaces(target: str) -> Any: ...
@overload
def replaces(target: T) -> T: ...
def replaces(target: Any) -> Any:
    """Mark a definition of an overlay file as the replacement of a stock definition.

    Without an argument, the definition replaces the stock name that equals its own. With "Class.attribute" it replaces
    that attribute. It may then be a function, classmethod, staticmethod or property, and its own name is free. Such a
    function has no `__class__` cell: write `super(Class, self)`.

    Raises TypeError if stock has no such definition, or if it is replaced twice.
    """
    if isinstance(target, str):
        return lambda new: _mark(new, target)
    return _mark(target, getattr(target, "__wrapped__", target).__qualname__)


def stock(target: str) -> Any:
    """The stock object that "torch.module:symbol" named before the overlay replaced it.

    Functions of classes are unbound: pass `self` or `cls` yourself. For a classmethod or staticmethod, it is the
    function inside.

    Raises LookupError if the module has no such symbol.
    """
    module_name, _, symbol = target.partition(":")
    found = _replaced(module_name, symbol)
    if found is None:
        recorder = getattr(_local, "recorder", None)
        if recorder is not None and recorder.module.__name__ == module_name:
            namespace = recorder.before
        else:
            namespace = vars(sys.modules.get(module_name) or import_module(module_name))
        found = lookup(namespace, symbol)
    if found is None:
        raise LookupError(f"torch has no {target}")
    return found.__func__ if isinstance(found, (classmethod, staticmethod)) else found


def _replaced(module: str, symbol: str) -> Any:
    """A stock object that was replaced itself, or is part of a replaced class; None if neither was replaced."""
    box = _stock.get(f"{module}:{symbol}")
    if box is not None:
        return box.value
    first, _, rest = symbol.partition(".")
    whole = _stock.get(f"{module}:{first}")
    return lookup({first: whole.value}, symbol) if whole is not None and rest else None


def remember(module: str, symbol: str, old: Box) -> None:
    """Record the stock object that a replacement replaced."""
    _stock[f"{module}:{symbol}"] = old


def forget(module: str, symbol: str) -> None:
    """Undo `remember`."""
    _stock.pop(f"{module}:{symbol}", None)


def replaced() -> dict[str, Any]:
    """Target -> stock object, for all that were replaced so far."""
    return {target: box.value for target, box in _stock.items()}
