"""Kinds of values that a reusable call may read: a decision about each kind of tracker that Dynamo's builder makes.

Note [A value is known by its object, its guards and its state]
For each value that tracing read, reuse compares the identity of the object, the guards on it (guard_facts.py), and the
state that tracing reads without a guard (``unguarded_state``, ``tensor_state``).  ``VALUES`` names the kinds for which
these three are enough.  A call that read a value of any other kind is not reused: such a kind has more state, or has
not been examined.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.trace.sources import NoStep, step_of
from torch._guards import ChainedSource, Source
from torch.fx.experimental import symbolic_shapes
from torch.utils._release import RELEASE


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


# Functions whose answer depends on what the shape environment has learned so far. No guard says what they answered.
_ASKING = (
    symbolic_shapes.guard_or_false,
    symbolic_shapes.guard_or_true,
    symbolic_shapes.guard_size_oblivious,
    symbolic_shapes.statically_known_false,
    symbolic_shapes.statically_known_true,
)


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Names of tracker classes, subclasses included. By name, because importing some would cost more than comparing names.
VALUES = _names(
    # Constants, by guards on their values.
    "ConstantVariable LazyConstantVariable UserDefinedConstantVariable TypingVariable ConstantLikeVariable"
    " NumpyDTypeVariable DispatchKeySetVariable"
    # Tensors, by metadata and autograd state. ``save`` refuses numbers that have a symbol.
    " TensorVariable TensorWithTFOverrideVariable NumpyNdarrayVariable UnspecializedPythonVariable SymNodeVariable"
    " DelayGraphBreakVariable UntypedStorageVariable"
    # Containers, by class, length, keys and order; their elements have sources of their own.
    " BaseListVariable ConstDictVariable SetVariable DictViewVariable DictKeySetVariable MappingProxyVariable"
    " SliceVariable RangeVariable NamedTupleVariable MutableMappingVariable OrderedSetClassVariable"
    # Iterators: a step changes the iterator, and a pending change refuses reuse.
    " IteratorVariable ListIteratorVariable TupleIteratorVariable CountIteratorVariable"
    # Objects, by class, own attributes, and guards on what is read.
    " UserDefinedVariable UserDefinedObjectVariable ObjectVariable UserDefinedClassVariable PythonModuleVariable"
    " UserDefinedExceptionClassVariable UserDefinedExceptionObjectVariable"
    " InspectVariable WorldMetaClassVariable UnspecializedNNModuleVariable FSDPManagedNNModuleVariable"
    " NNModuleVariable WeakRefVariable LoggingLoggerVariable DebuggingVariable NewGlobalVariable"
    " IgnoredFunctionVariable TensorSubclassVariable GetSetDescriptorVariable MemberDescriptorVariable"
    " CellVariable ItertoolsVariable RandomClassVariable StringFormatVariable ExceptionVariable"
    # Functions, by code or identity; cells and defaults have sources of their own.
    " BaseUserFunctionVariable WrapperUserFunctionVariable WrapperUserMethodVariable SkipFunctionVariable"
    " FunctoolsPartialVariable BaseBuiltinVariable BuiltinVariable LambdaVariable BaseTorchVariable"
    " TorchInGraphFunctionVariable TorchCtxManagerClassVariable TorchHigherOrderOperatorVariable GetAttrVariable"
    " CollectiveFunctionRewriteVariable PolyfilledFunctionVariable NumpyVariable AutogradFunctionVariable"
    " BoundBuiltinMethodVariable MethodWrapperVariable SysFunctionVariable CollectionsNamedTupleFunction"
    " WrapperDescriptorVariable SuperVariable MethodDescriptorVariable StaticMethodVariable"
    " ClassMethodVariable PropertyVariable ClassMethodDescriptorVariable TupleGetterVariable"
    # Context managers, by guards on them; what they set is in the global state.
    " ContextWrappingVariable NullContextVariable RecordFunctionVariable DynamoConfigPatchVariable"
    " ErrorOnGraphBreakVariable CudagraphOverrideVariable PreserveVersionContextVariable SDPAParamsVariable"
)
# Kinds with more state: what a random generator would draw next, what was saved for a backward, which number the frame
# gave a stream. A test compares both sets with the builder's own list.
REFUSED = _names(
    "RandomVariable AutogradFunctionContextVariable StreamVariable EventVariable StreamContextVariable"
    " FuncTorchInterpreterVariable OptimizerVariable KeyedJaggedTensorVariable AutogradEngineVariable"
    " TorchFunctionModeVariable TritonKernelVariable TritonSetAllocatorVariable BackwardHookVariable"
    " CreateTMADescriptorExperimentalVariable CreateTMADescriptorStableVariable ComptimeVariable"
    " DistributedVariable RemovableHandleVariable LocalGeneratorObjectVariable IntWrapperVariable"
)


# Opaque objects, by class and by what the class declares; and kinds that only some releases have.
if RELEASE >= (2, 15):
    VALUES |= _names("CustomClassObjectVariable CustomClassVariable BaseSetVariable")
    # A context variable's value, the allocating memory pool, the bytes of an array.
    REFUSED |= _names("ContextVarVariable CUDAMemPoolVariable CUDAMemPoolContextVariable ByteArrayVariable")
    # A device that differs from rank to rank.
    REFUSED |= _names("CurrentDeviceVariable CurrentDeviceContextVariable")
else:
    VALUES |= _names("TorchScriptObjectVariable OpaqueObjectClassVariable")


def _names_of(kind: type) -> set[str]:
    return {base.__name__ for base in kind.__mro__}


@functools.cache
def _is_refused(kind: type) -> bool:
    return not REFUSED.isdisjoint(_names_of(kind))


@functools.cache
def is_compared(kind: type) -> bool:
    """Whether object, guards and state are all that there is to values with trackers of this class."""
    return not _is_refused(kind) and not VALUES.isdisjoint(_names_of(kind))


def check_kinds(
    tx: InstructionTranslatorBase, sources: Iterable[Source], loaded: Iterable[VariableTracker] = ()
) -> None:
    """Raises CannotReuse if a tracker at one of ``sources`` is of a kind that is not compared in full.

    ``loaded``: what the call took out of cells and globals that the frame had read before; the frame may have made it.
    """
    trackers = tx.output.variable_tracker_cache
    for source in sources:
        tracker = dict.get(trackers, source)
        if tracker is not None and tracker.is_realized() and not is_compared(kind := type(tracker.unwrap())):
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_VALUE, f"{source.name}, a {kind.__name__}")
    for tracker in loaded:
        if tracker.is_realized() and _is_refused(kind := type(tracker.unwrap())):
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_VALUE, f"what a cell or a global holds, a {kind.__name__}")


def check_steps(sources: Iterable[Source]) -> None:
    """Raises CannotReuse if one of ``sources`` leads through a kind of source that is refused or has no decision."""
    known: set[Source] = set()
    for source in sources:
        at: Source | None = source
        while isinstance(at, ChainedSource) and at not in known:
            known.add(at)
            try:
                step_of(at)
            except NoStep as e:
                raise CannotReuse(ReuseMissReason.UNSUPPORTED_SOURCE, f"{source.name}, through a {e}") from None
            at = at.base


def check_functions(read: set[int]) -> None:
    """Raises CannotReuse if ``read``, the ids of objects that the call has read, has a function that asks for facts.

    The frame may know more of a size when it comes to another call.
    """
    for function in _ASKING:
        if id(function) in read:
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_VALUE, f"what is known of a size, by {function.__name__}")
