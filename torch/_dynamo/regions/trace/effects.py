"""The side effects of a region call, as recipes for later calls.

These can be repeated for a later call:

- binding attributes, globals and cells;
- appending to a list that the call does not read: one of its arguments, or one that is the same for all calls;
- storing to elements of a list or dict that the call touches by its elements only (element_stores.py);
- storing and appending to a list or dict behind an argument, which only the call has changed: each call has its own.

A call with any other effect (a hook, a random number) is traced each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.release import contents_changed
from torch._dynamo.regions.trace.containers import CONTAINERS, elements, plain_key, untouched_at
from torch._dynamo.regions.trace.operands import description, name_of
from torch._dynamo.regions.trace.substitution import Resolver, resolver
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
    tx: InstructionTranslatorBase,
    recorder: ReadSetRecorder,
    existing: list[VariableTracker],
    writer: RecipeWriter,
    behind: ArgumentSources,
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
    written |= {id(held) for held, _ in appended if _is_same_for_all(held, writer, behind)}
    for store in recorder.contents.stores:
        if not recorder.contents.is_by_element(store.container):
            if _is_own(store.container, recorder, writer, behind):
                continue
            raise CannotReuse(ReuseMissReason.SIDE_EFFECT, f"it stores to {name_of(store.container)}, which it reads")
        written.add(id(store.container))
        target = writer.write_target(store.container)
        effects.append(StoreElement(target, writer.write_expression(store.index), writer.write(store.value)))
    for tracker in existing:
        if id(tracker) not in written and _is_own(tracker, recorder, writer, behind):
            effects += _changed_elements(tracker, writer, resolver(tx))
        elif id(tracker) not in written:
            effects += _stores(tx, recorder, tracker, writer)
    return effects


def _is_same_for_all(tracker: VariableTracker, writer: RecipeWriter, behind: ArgumentSources) -> bool:
    return tracker.source is not None and id(tracker) not in writer.given and not behind.begins(tracker.source)


def _is_own(tracker: Any, recorder: ReadSetRecorder, writer: RecipeWriter, behind: ArgumentSources) -> bool:
    """Whether ``tracker`` is a list or dict behind an argument, as when the frame began until the call changed it."""
    if type(tracker) not in CONTAINERS or id(tracker) in recorder.changed_before or id(tracker) in writer.given:
        return False
    return tracker.source is not None and behind.holds(tracker.source)


def _changed_elements(tracker: Any, writer: RecipeWriter, resolve: Resolver) -> list[Effect]:
    """The stores and appends that make of a container as it was when the frame began what it is now.

    Raises CannotReuse if it takes more than these.
    """
    real, now = resolve(tracker.source), dict(elements(tracker))
    then = list(real) if type(real) is dict else list(range(len(real))) if type(real) is list else None
    keys = list(map(plain_key, now))
    if then is None or not all(type(key) in (int, str) for key in (*then, *keys)) or keys[: len(then)] != then:
        raise CannotReuse(ReuseMissReason.SIDE_EFFECT, f"it changes {description(tracker)}")
    target = writer.write_target(tracker)
    effects: list[Effect] = []
    for key, value in zip(keys, now.values(), strict=True):
        if untouched_at(tracker, key) is value:
            continue
        made = writer.write(value)
        more = type(real) is list and key >= len(real)
        effects.append(Append(target, made) if more else StoreElement(target, writer.write_expression(key), made))
    return effects


def write_appends(
    recorder: ReadSetRecorder, writer: RecipeWriter, behind: ArgumentSources, held_pending: Container[int]
) -> list[Effect]:
    """The effects on lists that are the same for all calls: behind no argument, or in ``held_pending``."""
    effects: list[Effect] = []
    given = {id(held.bottom) for held in writer.arguments.lists}
    for held, values in recorder.contents.appends(recorder.changed):
        if id(held) in given or not (id(held) in held_pending or _is_same_for_all(held, writer, behind)):
            continue  # one of the call's arguments, behind one, or made by the call
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
