"""Weights that the frame has stored in the modules of a call are further arguments of the call.

Note [A weight that the frame has stored is an argument]
``torch.func.functional_call`` stores the caller's tensors in ``_parameters`` and ``_buffers`` of each layer, calls the
model, and puts the layer's own back.  While the layers run, no source leads to what such a dict holds: the frame has
it.  So the key of a call lists each dict of weights behind an argument that the frame has changed: the way to the dict
from the argument, the names in order, and the value of each name.  A value is a leaf, as an argument is, and the body
takes it from the leaf.  The key then tells all that the dict holds, so the change is no reason to trace the call.

A value that the frame has put back, or not changed, is no leaf: its source tells what it is, as that of any weight.
A dict counts if it holds tensors and None only.  Any other change behind an argument is pending state, as before, and
so is a dict that the call reaches by another path than the argument: its object is the same in every call, so no other
call's dict stands in its place.  A call that changes such a dict itself is not reused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch._dynamo.regions.source_names import name_of_source
from torch._dynamo.regions.trace.containers import elements, plain_key, untouched_at
from torch._dynamo.regions.trace.events import CHANGED_WEIGHTS
from torch._dynamo.regions.trace.substitution import root_of
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.tensor import TensorVariable


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


# Begins the key of a call behind whose arguments the frame has changed weights; what they are, and the rest follow.
STORED = "weights that the frame has stored"


class StoredWeights(NamedTuple):
    """A dict of weights that the frame has changed."""

    holder: VariableTracker
    # Number of the argument's leaf that the dict is behind, and the way from there.
    leaf: int
    way: str
    names: tuple[str, ...]
    # None for a name whose value is the one of when the frame began: its source tells what it is.
    values: tuple[VariableTracker | None, ...]


def stored_weights(tx: InstructionTranslatorBase, leaves: list[Any]) -> list[StoredWeights]:
    """The changed dicts of weights behind ``leaves``, in an order that is the same for calls that are alike."""
    found: list[StoredWeights] = []
    if not (changed := CHANGED_WEIGHTS.of(tx.output)):
        return found
    roots: dict[Any, int] = {}
    for number, leaf in enumerate(leaves):
        for source in leaf.sources:
            roots.setdefault(source, number)
    begins = tuple(filter(None, map(name_of_source, roots)))
    for holder in changed.values():
        # By name first: a frame may have changed the weights of all layers, and sources are slow to hash.
        if not (name := name_of_source(holder.source)).startswith(begins):
            continue
        root = root_of(holder.source, roots)
        if root is None or type(holder) is not ConstDictVariable or not tx.output.side_effects.is_modified(holder):
            continue
        held, begin = _weights_in(holder), name_of_source(root)
        if held is not None and begin and name.startswith(begin):
            found.append(StoredWeights(holder, roots[root], name[len(begin) :], *held))
    return sorted(found, key=lambda each: (each.leaf, each.way))


def _weights_in(holder: Any) -> tuple[tuple[str, ...], tuple[Any, ...]] | None:
    """Names and values of a dict of weights; None if it holds anything else."""
    names, values = [], []
    for key, value in elements(holder):
        name = plain_key(key)
        own = type(name) is str and untouched_at(holder, name) is not None
        if type(name) is not str or not (own or _is_weight(value)):
            return None
        names.append(name)
        values.append(None if own else value)
    return tuple(names), tuple(values)


def _is_weight(tracker: Any) -> bool:
    known = tracker.unwrap()
    return type(known) is TensorVariable or (type(known) is ConstantVariable and known.value is None)
