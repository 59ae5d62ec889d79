"""What a call read of the frame's own changes, where each later call finds the same.

Note [Pending state that stays]
A frame changes an object before its layers run, and all layers read the object: a context with the step's number, a
collector that hooks look into.  Dynamo keeps such a change as pending: no source leads to it, and no guard is on it.
So an entry lists the changed objects that its call read, and all that is pending on each.  Another call is like the
traced one if it finds the same there.

- Only objects behind no argument count, and objects that the frame made and that these hold.  Each call reaches the
  same ones: the way to them is a source that is the same in every call, or is itself among what is compared.
- Only objects that the call did not change count.  So what is pending after the call was pending when it read.
- A list or dict that the frame made is compared if the call touched it (``Contents`` notes that), by the identity of
  its elements.  One that it only passes by may change: hooks append to it between the calls.
- A value is compared by identity, or if it is a plain constant, by value; a tensor also by what tracing may read of it.
  The frame may change any such value between two calls: what is pending on it is compared too, though it be nothing.
  Other kinds of mutable values (sets, iterators, instances of subclasses of containers) refuse reuse.
- A tensor there that the frame computed may be an operand: it is the same in each call.
- No value there may be one of the call's arguments, nor be behind one, in the traced call and in the other: what a call
  does with the one would be taken for what it does with the other.  No result and no effect may hold an object that is
  there: a recipe would make a new one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._dynamo.regions.keys import Same, constant_key
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.source_names import name_of_source
from torch._dynamo.regions.trace.containers import CONTAINERS, elements
from torch._dynamo.regions.trace.deferred import DeferredList
from torch._dynamo.regions.trace.objects import is_exact
from torch._dynamo.regions.trace.operands import name_of
from torch._dynamo.regions.trace.state import tensor_state
from torch._dynamo.regions.trace.substitution import root_of
from torch._dynamo.variables.base import AttributeMutationNew, VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import UserFunctionVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import TupleVariable
from torch._dynamo.variables.misc import NewGlobalVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable, UserDefinedObjectVariable


if TYPE_CHECKING:
    from torch._dynamo.regions.trace.argument_sources import ArgumentSources
    from torch._dynamo.regions.trace.fingerprint import Leaf
    from torch._dynamo.regions.trace.read_set import ReadSetRecorder
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._guards import Source


# Trackers whose pending state is their attributes. Modules by name: their tracker's file imports this one.
_OBJECTS = (UserDefinedObjectVariable, NewGlobalVariable)
_MODULES = ("UnspecializedNNModuleVariable", "UnspecializedBuiltinNNModuleVariable")
# Those whose attributes are compared only where a changed object leads to them.
_VALUES = (TensorVariable, UserFunctionVariable, UserDefinedClassVariable)


class Pending(NamedTuple):
    """What a call read of the frame's changes."""

    # (tracker, state): each changed object, and each value that these lead to, and all that is pending on it.
    states: list[tuple[VariableTracker, Hashable]]
    # id -> what these hold other than constants: trackers, and of tensors also node and value.
    held: dict[int, Any]
    # Sources of those that existed when the frame began.
    sources: list[Source]

    @property
    def objects(self) -> list[VariableTracker]:
        """Those of which a call reads what is pending. From these, an enclosing call finds the others itself."""
        return [tracker for tracker, _ in self.states if type(tracker) not in _VALUES]

    def check_arguments(self, leaves: Iterable[Leaf]) -> None:
        """Raises CannotReuse if one of a call's arguments is held there."""
        if self.held and any(id(each) in self.held for leaf in leaves for each in _names_of(leaf.tracker)):
            raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, "an argument that the frame has also put elsewhere")

    def tensors(self) -> dict[Any, VariableTracker]:
        """node -> tracker of each tensor held there that the frame computed."""
        found = (each for each in self.held.values() if type(each) is TensorVariable and each.source is None)
        return {each.proxy.node: each for each in found}

    def made(self) -> set[int]:
        """ids of the trackers held there that the frame made."""
        return {i for i, each in self.held.items() if isinstance(each, VariableTracker) and each.source is None}


def _names_of(tracker: Any) -> Iterator[Any]:
    """All that may be held where the value of ``tracker`` is."""
    known = tracker.bottom if type(tracker) is DeferredList else tracker.unwrap()
    yield known
    if type(known) is TensorVariable:
        yield known.proxy.node
        yield known.proxy.node.meta.get("example_value")


def pending_state(tx: InstructionTranslatorBase, tracker: Any) -> Hashable:
    """All that is pending on an object, all that tracing may read of a tensor, or all that a list or dict holds now."""
    side_effects = tx.output.side_effects
    names = tuple((name, _key(value)) for name, value in side_effects.store_attr_mutations.get(tracker, {}).items())
    if type(tracker) is TensorVariable:
        return (*names, tensor_state(tracker))
    if type(tracker) not in CONTAINERS:
        return (*names, tracker.mutation_type is not None and side_effects.is_modified(tracker))
    return (*names, *((k if type(k) is int else _key(k.vt), _key(value)) for k, value in elements(tracker)))


def _key(value: Any) -> Hashable:
    if type(value) is ConstantVariable:
        return constant_key(value.value) if is_exact(value.value) else Same(value.value)
    return Same(value)


def pending_read(
    tx: InstructionTranslatorBase,
    recorder: ReadSetRecorder,
    behind: ArgumentSources,
    changed: Iterable[VariableTracker],
) -> Pending:
    """What the call read of the frame's changes; ``changed`` are the changed objects that it read itself.

    Raises CannotReuse if another call may find something else, or if nothing tells what the call read.
    """
    own = set(map(id, recorder.changed))
    found: dict[int, VariableTracker] = {}
    held: dict[int, Any] = {}
    sources: list[Source] = []
    todo = list(changed)
    while todo:
        tracker: Any = todo.pop()
        if id(tracker) in found:
            continue
        compared = id(tracker) in held if type(tracker) in _VALUES else _stays(tracker, behind)
        if id(tracker) in own or not compared:
            raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(tracker))
        found[id(tracker)] = tracker
        sources += filter(None, (tracker.source,))
        for value in _held_by(tx, tracker):
            held.update((id(name), name) for name in _names_of(value))
            if value.source is not None:
                sources.append(value.source)
            if _is_to_compare(tx, recorder, behind, value):
                todo.append(value)
    return Pending([(tracker, pending_state(tx, tracker)) for tracker in found.values()], held, sources)


def check_pending(tx: InstructionTranslatorBase, pending: Pending, leaves: list[Leaf]) -> None:
    """Raises CannotReuse unless another call, with these ``leaves``, finds what the traced one read."""
    for tracker, state in pending.states:
        if pending_state(tx, tracker) != state:
            raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(tracker))
    pending.check_arguments(leaves)
    roots = {source for leaf in leaves for source in leaf.sources} if pending.sources else ()
    if behind := next((source for source in pending.sources if root_of(source, roots) is not None), None):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of_source(behind))


def _stays(tracker: Any, behind: ArgumentSources) -> bool:
    """Whether every call reaches the object, and what is pending on it can be compared."""
    if tracker.source is not None and behind.begins(tracker.source):
        return False
    return type(tracker) in (*CONTAINERS, *_OBJECTS) or type(tracker).__name__ in _MODULES


def _held_by(tx: InstructionTranslatorBase, tracker: Any) -> Iterator[Any]:
    """What is pending on an object, or what a container holds, without constants and what the program has not read."""
    todo = [*tx.output.side_effects.store_attr_mutations.get(tracker, {}).values()]
    if type(tracker) in CONTAINERS:
        todo += (value for _, value in elements(tracker))
    while todo:
        value: Any = todo.pop()
        if issubclass(type(value), LazyVariableTracker) and not value.is_realized():
            continue
        known = value.unwrap()
        if type(known) is not ConstantVariable:
            yield known
        if type(known) is TupleVariable:
            todo += known.items


def _is_to_compare(
    tx: InstructionTranslatorBase, recorder: ReadSetRecorder, behind: ArgumentSources, held: Any
) -> bool:
    """Whether what is pending on ``held``, or what it holds in its turn, is to be compared."""
    kind = type(held)
    if held.source is not None and behind.begins(held.source):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(held))
    if held.source is not None and tx.output.side_effects.is_modified(held):
        return True
    if kind is TupleVariable:
        return False  # ``_held_by`` looks into it
    if kind in CONTAINERS:
        return recorder.contents.may_have_touched(held)
    # What the call reads of an object that existed has sources, where a later change of the frame's is not seen.
    existed = held.source is not None and (kind is UserDefinedObjectVariable or kind.__name__ in _MODULES)
    made = kind is UserDefinedObjectVariable and type(held.mutation_type) is AttributeMutationNew
    if kind in _VALUES or existed or made:
        return True
    raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(held))
