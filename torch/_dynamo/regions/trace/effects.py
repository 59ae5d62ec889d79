"""The side effects of a region call, as recipes for later calls.

These can be repeated for a later call: binding attributes, globals and cells, and appending to a list that the call
does not read.  A call with any other effect (on a dict's contents, a hook, a random number) is traced each time.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.release import contents_changed
from torch._dynamo.variables.misc import CellVariable, DeletedVariable, NewGlobalVariable, PythonModuleVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable


if TYPE_CHECKING:
    from torch._dynamo.regions.trace.read_set import ReadSetRecorder
    from torch._dynamo.regions.trace.recipe import Maker, Recipe, RecipeWriter
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


@dataclasses.dataclass
class Store:
    """A name that the call binds on an object, in a module or in a cell."""

    target: Recipe
    name: str
    value: Recipe
    kind: Any

    @property
    def says(self) -> Any:
        return "store", self.target.says, self.name, self.value.says


def write_effects(
    tx: InstructionTranslatorBase, recorder: ReadSetRecorder, existing: list[VariableTracker], writer: RecipeWriter
) -> list[Store | Append]:
    """The effects on ``existing``, the trackers of objects that the call changed but did not make.

    Raises CannotReuse if an effect cannot be repeated for another call.
    """
    if recorder.has_other_effects:
        raise CannotReuse(ReuseMissReason.SIDE_EFFECT, "a hook, a random number or a message")
    lists = [] if recorder.deferred.saw_a_list else writer.arguments.lists
    effects: list[Store | Append] = []
    for held in lists:
        target = writer.write_target(held)
        effects += [Append(target, writer.write(value)) for value in held.appended]
    bottoms = {id(held.unwrap()) for held in lists}
    for tracker in existing:
        if id(tracker) not in bottoms:
            effects += _stores(tx, recorder, tracker, writer)
    return effects


@dataclasses.dataclass
class Append:
    """A value that the call appends to a list among its arguments."""

    target: Recipe
    value: Recipe

    @property
    def says(self) -> Any:
        return "append", self.target.says, self.value.says


def _stores(
    tx: InstructionTranslatorBase, recorder: ReadSetRecorder, tracker: Any, writer: RecipeWriter
) -> list[Store]:
    side_effects = tx.output.side_effects
    kinds = (NewGlobalVariable, CellVariable, PythonModuleVariable, UserDefinedObjectVariable)
    if not isinstance(tracker, kinds) or (
        isinstance(tracker, UserDefinedObjectVariable) and contents_changed(tracker, side_effects)
    ):
        raise CannotReuse(ReuseMissReason.SIDE_EFFECT, f"it changes a {type(tracker).__name__}")
    before = recorder.before.get(tracker, {})
    target = writer.write_target(tracker)
    stores = []
    for name, value in side_effects.store_attr_mutations.get(tracker, {}).items():
        # A global or a cell has one name only, which the call has bound, maybe to the same value as before.
        if before.get(name) is value and not isinstance(tracker, (NewGlobalVariable, CellVariable)):
            continue
        if type(value) is DeletedVariable:  # isinstance would realize a lazy one, which the program has not read
            raise CannotReuse(ReuseMissReason.SIDE_EFFECT, f"it deletes {name}")
        kind = side_effects.get_attr_mutation_kind(tracker, name)
        stores.append(Store(target, name, writer.write(value), kind))
    return stores


def carry_out(maker: Maker, effects: list[Store | Append]) -> None:
    """Carries ``effects`` out for a call.  Makes all values first: some are computed from what the effects rebind."""
    side_effects = maker.tx.output.side_effects
    values = [effect.value.make(maker) for effect in effects]
    for effect, value in zip(effects, values, strict=True):
        if isinstance(effect, Append):
            effect.target.make(maker).call_method(maker.tx, "append", [value], {})
            continue
        side_effects.store_attr(effect.target.make(maker).realize(), effect.name, value, effect.kind)
