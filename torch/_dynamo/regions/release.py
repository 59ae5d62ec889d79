"""Differences in Dynamo between the supported releases of torch, each under one name."""

from __future__ import annotations

from typing import Any

from torch._dynamo.variables.base import ValueMutationExisting
from torch._dynamo.variables.dicts import ConstDictVariable
from torch.utils._release import RELEASE


# Tracker classes of dicts. Before 2.15, Dynamo tracks OrderedDict and defaultdict as user-defined objects with a dict.
DICTS: tuple[type, ...] = (ConstDictVariable,)
# Tracker classes of constants that were computed from lazy constants, which the program has not read yet.
COMPUTED: tuple[type, ...] = ()

if RELEASE >= (2, 15):
    from torch._dynamo.variables.dicts import OrderedDictVariable
    from torch._dynamo.variables.lazy import ComputedLazyConstantVariable
    from torch._dynamo.variables.script_object import CustomClassObjectVariable
    from torch._dynamo.variables.sets import BaseSetVariable
    from torch._dynamo.variables.user_defined import DefaultDictVariable

    DICTS = (ConstDictVariable, OrderedDictVariable, DefaultDictVariable)
    COMPUTED = (ComputedLazyConstantVariable,)
else:
    from torch._dynamo.variables.script_object import TorchScriptObjectVariable as CustomClassObjectVariable
    from torch._dynamo.variables.sets import SetVariable as BaseSetVariable

__all__ = [
    "COMPUTED",
    "DICTS",
    "BaseSetVariable",
    "CustomClassObjectVariable",
    "bound_to",
    "contents_changed",
    "settled",
]


def bound_to(method: Any) -> Any:
    """The tracker of the object that a method is bound to."""
    return method.im_self if RELEASE >= (2, 15) else method.obj


def contents_changed(tracker: Any, side_effects: Any) -> bool:
    """Whether the frame has changed the contents of ``tracker``, an object of a class that derives from a container."""
    if RELEASE >= (2, 15):
        mutation = tracker.mutation_type
        return isinstance(mutation, ValueMutationExisting) and mutation.is_modified
    changed: bool = tracker.is_base_vt_modified(side_effects)
    return changed


def settled(tracker: Any) -> Any:
    """``tracker``, realized if it is a computed constant, since that has no source to know it by."""
    return tracker.realize() if type(tracker) in COMPUTED else tracker
