"""How to follow a source from its base: a decision about each kind of source that Dynamo has.

A read set consists of sources, and each call looks up the values at them.  ``STEPS`` says for every kind of source how
to do that.  A call that read through a kind without a decision is not reused, and a test names the kind.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any

from torch._dynamo import source as sources
from torch._guards import ChainedSource, Source
from torch.utils._release import RELEASE


class Step(enum.Enum):
    """How a source follows from its base."""

    ATTRIBUTE = enum.auto()
    ITEM = enum.auto()
    SAME = enum.auto()  # the base's own value, under another name
    EVALUATED = enum.auto()  # torch computes it from the base alone: its class, one of its cells, ...
    OTHER = enum.auto()  # torch computes it from several sources, or from none
    REFUSED = enum.auto()  # a call that reads through it is not reused


class NoStep(Exception):
    """The source is of a kind that is refused, or that has no decision."""


_BY_KIND: dict[Step, tuple[Any, ...]] = {
    Step.ATTRIBUTE: (
        sources.AttrSource,
        sources.CellContentsSource,
        sources.ParamBufferSource,
        sources.UnspecializedParamBufferSource,
        # An attribute without __getattr__; attribute_of does not run the program's.
        sources.GenericAttrSource,
    ),
    Step.ITEM: (
        sources.GetItemSource,
        sources.ListGetItemSource,
        sources.DictGetItemSource,
        sources.DictSubclassGetItemSource,
    ),
    Step.SAME: (
        sources.NNModuleSource,
        sources.UnspecializedNNModuleSource,
        sources.UnspecializedBuiltinNNModuleSource,
        sources.FSDPNNModuleSource,
        sources.OptimizerSource,
        sources.SkipGuardSource,
    ),
    Step.EVALUATED: (
        sources.AttrProxySource,
        sources.CallFunctionNoArgsSource,
        sources.CallMethodItemSource,
        sources.ClosureSource,
        sources.CodeSource,
        sources.ConstDictKeySource,
        sources.ConvertIntSource,
        sources.DataclassFieldsSource,
        sources.DefaultsSource,
        sources.DynamicScalarSource,
        sources.FlattenScriptObjectSource,
        sources.FloatTensorSource,
        sources.GradSource,
        sources.IndexedSource,
        sources.NamedTupleFieldsSource,
        sources.NegateSource,
        sources.NonSerializableSetGetItemSource,
        sources.NumpyTensorSource,
        sources.ScriptObjectQualifiedNameSource,
        sources.SubclassAttrListSource,
        sources.TensorPropertySource,
        sources.TupleIteratorGetItemSource,
        sources.TypeDictSource,
        sources.TypeMROSource,
        sources.TypeSource,
        sources.WeakRefCallSource,
    ),
    Step.OTHER: (
        sources.BackwardStateSource,
        sources.ConstantSource,
        sources.CurrentStreamSource,
        sources.EphemeralSource,
        sources.GlobalSource,
        sources.GlobalStateSource,
        sources.GlobalWeakRefSource,
        sources.ImportSource,
        sources.LocalCellSource,
        sources.LocalSource,
        sources.RandomValueSource,
        sources.ShapeEnvSource,
        sources.SyntheticLocalSource,
        sources.TempLocalSource,
        sources.TorchFunctionModeStackSource,
    ),
}
if RELEASE >= (2, 15):
    _BY_KIND[Step.REFUSED] = (
        # Its value depends on the current context, not on the base alone.
        sources.ContextVarGetSource,
        # An iterator in use has state that no guard here compares.
        sources.ListReverseIteratorBackingListSource,
        # Reading its value waits for a collective.
        sources.UnwrapCollectiveTensorSource,
    )
# The kind of source behind which Dynamo makes no guards.
WITHOUT_GUARDS: Any = sources.SkipGuardSource
STEPS: dict[Any, Step] = {kind: step for step, kinds in _BY_KIND.items() for kind in kinds}


def step_of(source: Any) -> tuple[Step, Any]:
    """How to follow ``source`` from its base, and by which name or index.  Raises NoStep."""
    step = STEPS.get(type(source), Step.REFUSED)
    if step is Step.REFUSED:
        raise NoStep(type(source).__name__)
    if step is Step.ATTRIBUTE:
        return step, source.member
    if step is Step.ITEM:
        if isinstance(source.index, Source):
            return Step.OTHER, None
        if getattr(source, "index_is_slice", False):
            return Step.EVALUATED, None
        return step, source.index
    if step is Step.EVALUATED and list(source_parts(source)) != ["base"]:
        return Step.OTHER, None
    return step, None


def source_parts(source: Source) -> dict[str, Source]:
    """The sources among the fields of ``source``, by field: its base, and maybe others such as a dict's key."""
    if not isinstance(source, ChainedSource):
        return {}
    kind: Any = type(source)
    found = ((name, getattr(source, name)) for name in field_names(kind))
    return {name: part for name, part in found if isinstance(part, Source)}


@functools.cache
def field_names(kind: Any) -> tuple[str, ...]:
    """The names of the fields of a kind of source."""
    return tuple(field.name for field in dataclasses.fields(kind))
