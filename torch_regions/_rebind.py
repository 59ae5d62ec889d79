"""Finds the holders of a replaced object and gives them the replacement.

Before the overlay patches a stock module, the module has registered its functions (dispatch tables, decorators), and
other modules have copied names from it. One walk over the heap per patched module finds all these holders.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator, Sequence
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any

from torch_regions._held import Box, Snapshot


# id of an old object -> the old and the new one
Table = dict[int, tuple[Box, Box]]
Pair = tuple[Box, Box]

# A function without other holders has these references: the box, the snapshot of the namespace, the local variable and
# the argument of getrefcount. From 3.14 on, Python does not count all of them, so the walk is always made.
_UNSHARED = 4 if sys.version_info < (3, 14) else 0


def rebind(pairs: Sequence[Pair], all_of_them: bool = False) -> list[str]:
    """Replace the first of each pair by the second in all holders; describe the holders that could not be changed.

    Unless `all_of_them`, a stock function that only its module's snapshot holds is skipped.
    """
    wanted = [pair for pair in pairs if all_of_them or isinstance(pair[0].value, type) or _shared(pair[0])]
    if not wanted:
        return []
    frozen = gc.get_freeze_count() > 0
    try:
        if frozen:
            gc.unfreeze()  # the walk does not see frozen objects
        return _rebind(wanted)
    finally:
        if frozen:
            gc.freeze()


def _rebind(wanted: Sequence[Pair]) -> list[str]:
    stale: list[str] = []
    for old, new in wanted:
        if isinstance(old.value, type):
            stale += _rebase(old.value, new.value)
    table: Table = {id(old.value): (old, new) for old, new in wanted}
    for holder in _holders(wanted):
        if not _replace_in(holder, table):
            stale.append(describe(holder))
    return stale


def _shared(box: Box) -> bool:
    value = box.value
    return sys.getrefcount(value) > _UNSHARED


def _holders(wanted: Sequence[Pair]) -> Iterator[Any]:
    own = set()
    for old, _ in wanted:
        own |= _own_parts(old.value)
    for holder in gc.get_referrers(*[old.value for old, _ in wanted]):
        if not isinstance(holder, (Box, Snapshot, FrameType)) and id(holder) not in own:
            yield holder


def _own_parts(old: Any) -> set[int]:
    """The ids of a class's own parts that refer to it: its `__mro__`, its descriptors, the cells for `super()`."""
    if not isinstance(old, type):
        return set()
    parts = {id(old), id(old.__mro__)}
    for value in vars(old).values():
        parts.add(id(value))
        function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        if isinstance(function, FunctionType):
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
                if name == "__class__":
                    parts.add(id(cell))
    return parts


def describe(holder: object) -> str:
    """A short text about an object, even if its repr raises."""
    try:
        text = repr(holder)[:200]
    except Exception:
        text = "(no repr)"
    return f"{type(holder).__module__}.{type(holder).__qualname__} {text}"


def _rebase(old: type, new: type) -> list[str]:
    """Make the subclasses of a replaced class derive from the new one; describe those that cannot."""
    stale: list[str] = []
    sub: type
    for sub in type.__subclasses__(old):
        if new in sub.__mro__ or issubclass(new, sub):
            continue
        try:
            sub.__bases__ = tuple(new if base is old else base for base in sub.__bases__)
        except TypeError as error:
            stale.append(f"class {sub.__module__}.{sub.__qualname__}: {error}")
    return stale


def _new(value: object, table: Table) -> Any:
    """The replacement of `value`, or `value` itself."""
    pair = table.get(id(value))
    return value if pair is None else pair[1].value


def _replace_in(holder: Any, table: Table) -> bool:
    """Replace the old objects that `holder` holds. False if it cannot be changed."""
    if isinstance(holder, dict):
        return _replace_in_dict(holder, table)
    if isinstance(holder, list):
        holder[:] = [_new(item, table) for item in holder]
        return True
    if isinstance(holder, set):
        for item in [item for item in holder if id(item) in table]:
            holder.discard(item)
            holder.add(_new(item, table))
        return True
    if isinstance(holder, CellType):
        holder.cell_contents = _new(holder.cell_contents, table)
        return True
    if isinstance(holder, tuple):
        return _replace_in_tuple(holder, table)
    if isinstance(holder, functools.partial):
        state = (_new(holder.func, table), tuple(_new(item, table) for item in holder.args), holder.keywords)
        holder.__setstate__((*state, vars(holder)))  # type: ignore[attr-defined]
        return True
    if isinstance(holder, type):
        # A subclass that _rebase has reported, or our own class, which derives from the stock one.
        return True
    return _replace_in_instance(holder, table)


def _replace_in_dict(holder: dict[Any, Any], table: Table) -> bool:
    owner = None if "__name__" in holder and "__spec__" in holder else _class_of_namespace(holder)
    for key, value in list(holder.items()):
        if id(value) in table:
            if owner is not None:
                setattr(owner, key, _new(value, table))
            else:
                holder[key] = _new(value, table)
        if id(key) in table:
            holder[_new(key, table)] = holder.pop(key)
    return True


def _class_of_namespace(namespace: dict[str, Any]) -> type | None:
    """The class that has this namespace. Names must be set through the class, or method caches go stale."""
    if "__module__" not in namespace:
        return None
    for owner in gc.get_referrers(namespace):
        if isinstance(owner, type) and vars(owner).items() == namespace.items():
            return owner
    return None


def _replace_in_tuple(holder: tuple[Any, ...], table: Table) -> bool:
    """A tuple cannot change, but a function can be given another tuple of defaults."""
    done = False
    for owner in gc.get_referrers(holder):
        if isinstance(owner, FunctionType) and owner.__defaults__ is holder:
            owner.__defaults__ = tuple(_new(item, table) for item in holder)
            done = True
    return done


def _replace_in_instance(holder: Any, table: Table) -> bool:
    done = False
    if id(type(holder)) in table:
        try:
            holder.__class__ = _new(type(holder), table)
            done = True
        except TypeError:
            return False
    attributes = getattr(holder, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(holder, ModuleType):
        for name, value in list(attributes.items()):
            if id(value) in table:
                attributes[name] = _new(value, table)
                done = True
    return done
