"""Sources without their base, from which the same source is made behind another call's base."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from torch._dynamo.regions.trace.objects import find_in_class
from torch._dynamo.regions.trace.sources import field_names
from torch._dynamo.source import (
    AttrSource,
    DictGetItemSource,
    NNModuleSource,
    UnspecializedBuiltinNNModuleSource,
    UnspecializedNNModuleSource,
    UnspecializedParamBufferSource,
)
from torch._guards import ChainedSource, Source


# Kinds whose constructor checks only the fields besides the base. Most sources are of these kinds.
_KINDS = (
    AttrSource,
    UnspecializedParamBufferSource,
    UnspecializedNNModuleSource,
    NNModuleSource,
    UnspecializedBuiltinNNModuleSource,
    DictGetItemSource,
)


class Skeleton(NamedTuple):
    """A source without its base."""

    kind: Any
    fields: dict[str, Any]
    # Dynamo's template of the name, given the base's; None if the kind computes its name otherwise.
    name: str | None
    # Whether ``guard_source`` is that of the base.
    guarded_as_base: bool

    def behind(self, base: Source) -> Source:
        """The source behind ``base``, made without a constructor: the original source has passed its checks."""
        made: Source = object.__new__(self.kind)
        own = made.__dict__
        own.update(self.fields)
        own["base"] = base
        # What Dynamo would compute from the base, where the base has it already.
        known = base.__dict__
        if self.name is not None and "name" in known:
            own["name"] = self.name.format(known["name"])
        if self.guarded_as_base and "guard_source" in known:
            own["guard_source"] = known["guard_source"]
        return made


def skeleton_of(source: Any) -> Skeleton | None:
    """``source`` without its base; None for other kinds than ``_KINDS``, and if a field holds another source."""
    kind = type(source)
    if kind not in _KINDS:
        return None
    fields = {name: getattr(source, name) for name in field_names(kind) if name != "base"}
    if any(isinstance(value, Source) for value in fields.values()):
        return None
    of_kind: Any = _inherits  # type checkers take a class to be unhashable
    named, guarded = of_kind(kind)
    return Skeleton(kind, fields, source._name_template if named else None, guarded)


@functools.cache
def _inherits(kind: Any) -> tuple[bool, bool]:
    """Whether ``name``, and whether ``guard_source``, of a kind is the cached property of ChainedSource."""
    plain = [find_in_class(kind, name) is vars(ChainedSource)[name] for name in ("name", "guard_source")]
    cached = [isinstance(vars(ChainedSource)[name], functools.cached_property) for name in ("name", "guard_source")]
    return plain[0] and cached[0], plain[1] and cached[1]
