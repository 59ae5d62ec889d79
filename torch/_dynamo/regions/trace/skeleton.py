"""What a source is apart from its base: the same source is made behind the base that stands there in another call."""

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


# Kinds of which Dynamo checks nothing but the fields beside the base when one is made. Most sources are of these.
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
    # Its fields beside the base.
    fields: dict[str, Any]
    # What Dynamo makes its name of, given that of its base; None where the kind has a way of its own.
    name: str | None
    # Whether it is guarded as its base is.
    guarded_as_base: bool

    def behind(self, base: Source) -> Source:
        """The source behind ``base``.  Not checked anew: the one that the skeleton is of was."""
        made: Source = object.__new__(self.kind)
        own = made.__dict__
        own.update(self.fields)
        own["base"] = base
        # What Dynamo would find out of the base, if it is known of that by now.
        known = base.__dict__
        if self.name is not None and "name" in known:
            own["name"] = self.name.format(known["name"])
        if self.guarded_as_base and "guard_source" in known:
            own["guard_source"] = known["guard_source"]
        return made


def skeleton_of(source: Any) -> Skeleton | None:
    """``source`` without its base; None for kinds of which more is to be known."""
    kind = type(source)
    if kind not in _KINDS:
        return None
    fields = {name: getattr(source, name) for name in field_names(kind) if name != "base"}
    if any(isinstance(value, Source) for value in fields.values()):
        return None
    of_kind: Any = _inherits  # (type checkers take a class for something without a hash)
    named, guarded = of_kind(kind)
    return Skeleton(kind, fields, source._name_template if named else None, guarded)


@functools.cache
def _inherits(kind: Any) -> tuple[bool, bool]:
    """Whether a kind's name, and how it is guarded, are what any source behind a base has."""
    plain = [find_in_class(kind, name) is vars(ChainedSource)[name] for name in ("name", "guard_source")]
    cached = [isinstance(vars(ChainedSource)[name], functools.cached_property) for name in ("name", "guard_source")]
    return plain[0] and cached[0], plain[1] and cached[1]
