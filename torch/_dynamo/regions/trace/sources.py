"""How a source leads on from its base: the decision about each kind of source that Dynamo has.

A read set is about sources, and what stands at them is looked up for each call.  ``STEPS`` says of every kind of source
how that is done; a call that read through a kind without a decision is not reused, and a test names the kind.
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
    """How a source leads on from its base."""

    ATTRIBUTE = enum.auto()
    ITEM = enum.auto()
    SAME = enum.auto()  # another name for the same thing
    EVALUATED = enum.auto()  # by torch, of its base alone: the class of it, a cell of it, ...
    OTHER = enum.auto()  # by torch, of several sources, or of none
    REFUSED = enum.auto()  # a call that reads through it is not reused


class NoStep(Exception):
    """A source of a kind that is refused, or that no decision was made about."""


_BY_KIND: dict[Step, tuple[Any, ...]] = {
    Step.ATTRIBUTE: (
        sources.AttrSource,
        sources.CellContentsSource,
        sources.ParamBufferSource,
        sources.UnspecializedParamBufferSource,
        # Without __getattr__; attribute_of runs none of the program's.
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
        # What it leads to depends on the context that is asked, not on its base alone.
        sources.ContextVarGetSource,
        # An iterator that is being stepped has state that no guard of ours compares.
        sources.ListReverseIteratorBackingListSource,
        # To ask for its value waits for a collective.
        sources.UnwrapCollectiveTensorSource,
    )
STEPS: dict[Any, Step] = {kind: step for step, kinds in _BY_KIND.items() for kind in kinds}


def step_of(source: Any) -> tuple[Step, Any]:
    """How ``source`` leads on from its base, and by which name or index.  Raises NoStep."""
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
    """The sources that ``source`` is made of: its base, and maybe others, as the key of a dict."""
    if not isinstance(source, ChainedSource):
        return {}
    kind: Any = type(source)
    found = ((name, getattr(source, name)) for name in field_names(kind))
    return {name: part for name, part in found if isinstance(part, Source)}


@functools.cache
def field_names(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a kind of source."""
    return tuple(field.name for field in dataclasses.fields(kind))
