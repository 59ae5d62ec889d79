"""The side effects of a region call, as recipes for later calls.

These can be repeated for a later call: binding attributes, globals and cells, appending to a list that the call does
not read (one of its arguments, or one that is the same for all calls), and storing to elements of a list or dict that
the call touches by its elements only (element_stores.py).  A call with any other effect (on other contents of a dict, a
hook, a random number) is traced each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.release import contents_changed
from torch._dynamo.regions.trace.operands import description, name_of
from torch._dynamo.variables.lists import ListVariable
from torch._dynamo.variables.misc import CellVariable, DeletedVariable, NewGlobalVariable, PythonModuleVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable


if TYPE_CHECKING:
    from torch._dynamo.regions.trace.argument_sources import ArgumentSources
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


@dataclasses.dataclass
class Append:
    """A value that the call appends to a list among its arguments."""

    target: Recipe
    value: Recipe

    @property
    def says(self) -> Any:
        return "append", self.target.says, self.value.says


@dataclasses.dataclass
class StoreElement:
    """A value that the call stores to an element of a list or dict."""

    target: Recipe
    index: Recipe
    value: Recipe

    @property
    def says(self) -> Any:
        return "store element", self.target.says, self.index.says, self.value.says


Effect = Store | Append | StoreElement


def write_effects(
    tx: InstructionTranslatorBase, recorder: ReadSetRecorder, existing: list[VariableTracker], writer: RecipeWriter
) -> list[Effect]:
    """The effects on ``existing``, the trackers of objects that the call changed but did not make.

    Raises CannotReuse if an effect cannot be repeated for another call.
    """
    if recorder.has_other_effects:
        raise CannotReuse(ReuseMissReason.SIDE_EFFECT, "a hook, a random number or a message")
    lists = [] if recorder.deferred.saw_a_list else writer.arguments.lists
    effects: list[Effect] = []
    for held in lists:
        target = writer.write_target(held)
        effects += [Append(target, writer.write(value)) for value in held.appended]
    written = {id(held.unwrap()) for held in lists}
    appended = recorder.contents.appends(recorder.changed)
    written |= {id(held) for held, _ in appended if held.source is not None and id(held) not in writer.given}
    for store in recorder.contents.stores:
        if not recorder.contents.is_by_element(store.container):
            raise CannotReuse(ReuseMissReason.SIDE_EFFECT, f"it stores to {name_of(store.container)}, which it reads")
        written.add(id(store.container))
        target = writer.write_target(store.container)
        effects.append(StoreElement(target, writer.write_expression(store.index), writer.write(store.value)))
    for tracker in existing:
        if id(tracker) not in written:
            effects += _stores(tx, recorder, tracker, writer)
    return effects


def write_appends(
    recorder: ReadSetRecorder, writer: RecipeWriter, behind: ArgumentSources, held_pending: Container[int]
) -> list[Effect]:
    """The effects on lists that are the same for all calls: behind no argument, or in ``held_pending``.

    Raises CannotReuse if the call appends to a list that is behind an argument.
    """
    effects: list[Effect] = []
    given = {id(held.bottom) for held in writer.arguments.lists}.union(writer.given)
    for held, values in recorder.contents.appends(recorder.changed):
        if id(held) in given or (held.source is None and id(held) not in held_pending):
            continue  # one of the call's arguments, or made by the call
        if held.source is not None and behind.begins(held.source):
            raise CannotReuse(ReuseMissReason.SIDE_EFFECT, f"it changes {description(held)}")
        target = writer.write_fixed(held)
        effects += [Append(target, writer.write(value)) for value in values]
    return effects


def _stores(
    tx: InstructionTranslatorBase, recorder: ReadSetRecorder, tracker: Any, writer: RecipeWriter
) -> list[Store]:
    side_effects = tx.output.side_effects
    kinds = (NewGlobalVariable, CellVariable, PythonModuleVariable, UserDefinedObjectVariable)
    if not isinstance(tracker, kinds) or (
        isinstance(tracker, UserDefinedObjectVariable) and contents_changed(tracker, side_effects)
    ):
        first = recorder.contents.is_first or (type(tracker) is ListVariable and recorder.contents.notes_from_now_on())
        reason = ReuseMissReason.FIRST_STORE if first else ReuseMissReason.SIDE_EFFECT
        raise CannotReuse(reason, f"it changes {description(tracker)}")
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


def carry_out(maker: Maker, effects: list[Effect]) -> None:
    """Carries ``effects`` out for a call.  Makes all values first: some are computed from what the effects rebind."""
    side_effects = maker.tx.output.side_effects
    values = [effect.value.make(maker) for effect in effects]
    indices = [effect.index.make(maker) if isinstance(effect, StoreElement) else None for effect in effects]
    for effect, value, index in zip(effects, values, indices, strict=True):
        target = effect.target.make(maker)
        if isinstance(effect, Append):
            target.call_method(maker.tx, "append", [value], {})
        elif isinstance(effect, StoreElement):
            target.call_method(maker.tx, "__setitem__", [index, value], {})
        else:
            side_effects.store_attr(target.realize(), effect.name, value, effect.kind)
