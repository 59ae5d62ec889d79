"""What a call may look at and still be reused: the decision about each kind of value that Dynamo's builder makes a
tracker of.

Note [A value is known by its object, its guards and its state]
Reuse compares, of each value that tracing looked at, which object it is, the guards on it (guard_facts.py), and what
tracing sees of it without a guard (``unguarded_state``, ``tensor_state``).  For a kind of value that has more to it
than that, or of which this was not looked into, a call is not reused.  ``VALUES`` names the kinds for which the three
are all there is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.trace.sources import NoStep, step_of
from torch._guards import ChainedSource, Source
from torch.utils._release import RELEASE


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Names of tracker classes, whose subclasses count as they do: importing some of them costs more than comparing names.
VALUES = _names(
    # Constants, by guards on their values.
    "ConstantVariable LazyConstantVariable UserDefinedConstantVariable TypingVariable ConstantLikeVariable"
    " NumpyDTypeVariable DispatchKeySetVariable"
    # Tensors, by metadata and autograd state. Numbers with a symbol are refused where tracing comes to them.
    " TensorVariable TensorWithTFOverrideVariable NumpyNdarrayVariable UnspecializedPythonVariable SymNodeVariable"
    " DelayGraphBreakVariable UntypedStorageVariable"
    # Containers, by class, length, keys and order; what they hold has sources of its own.
    " BaseListVariable ConstDictVariable SetVariable DictViewVariable DictKeySetVariable MappingProxyVariable"
    " SliceVariable RangeVariable NamedTupleVariable MutableMappingVariable OrderedSetClassVariable"
    # Iterators: a step changes them, and a change that is pending refuses.
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
    # Contexts, by guards on them; what they set is in the global state.
    " ContextWrappingVariable NullContextVariable RecordFunctionVariable DynamoConfigPatchVariable"
    " ErrorOnGraphBreakVariable CudagraphOverrideVariable PreserveVersionContextVariable SDPAParamsVariable"
)
# Kinds whose state is more than that: what a random generator would draw next, what was saved for a backward, which
# number the frame gave a stream. A test holds both sets to the builder's own list.
REFUSED = _names(
    "RandomVariable AutogradFunctionContextVariable StreamVariable EventVariable StreamContextVariable"
    " FuncTorchInterpreterVariable OptimizerVariable KeyedJaggedTensorVariable AutogradEngineVariable"
    " TorchFunctionModeVariable TritonKernelVariable TritonSetAllocatorVariable BackwardHookVariable"
    " CreateTMADescriptorExperimentalVariable CreateTMADescriptorStableVariable ComptimeVariable"
    " DistributedVariable RemovableHandleVariable LocalGeneratorObjectVariable IntWrapperVariable"
)


# Objects that are opaque to Dynamo, by class and by what the class declares; and what one release alone has.
if RELEASE >= (2, 15):
    VALUES |= _names("CustomClassObjectVariable CustomClassVariable BaseSetVariable")
    # What a context variable is set to, the pool that allocates, the bytes of an array.
    REFUSED |= _names("ContextVarVariable CUDAMemPoolVariable CUDAMemPoolContextVariable ByteArrayVariable")
    # A device that is another one on each rank.
    REFUSED |= _names("CurrentDeviceVariable CurrentDeviceContextVariable")
else:
    VALUES |= _names("TorchScriptObjectVariable OpaqueObjectClassVariable")


@functools.cache
def is_compared(kind: type) -> bool:
    """Whether values with trackers of this class are known by their object, their guards and their state."""
    names = {base.__name__ for base in kind.__mro__}
    return names.isdisjoint(REFUSED) and not names.isdisjoint(VALUES)


def check_kinds(tx: InstructionTranslatorBase, sources: Iterable[Source]) -> None:
    """Raises CannotReuse when tracing made a tracker at ``sources`` of a kind that is not compared in full."""
    trackers = tx.output.variable_tracker_cache
    for source in sources:
        tracker = dict.get(trackers, source)
        if tracker is not None and tracker.is_realized() and not is_compared(kind := type(tracker.unwrap())):
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_VALUE, f"{source.name}, a {kind.__name__}")


def check_steps(sources: Iterable[Source]) -> None:
    """Raises CannotReuse when one of ``sources`` leads through a kind of source that was not decided about."""
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
