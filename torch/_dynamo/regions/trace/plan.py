"""The plan by which a call is checked against an entry: the entry's sources, each after its base.

An entry is compared with many calls, by the same sources each time.  So the order of the sources, and how each follows
from its base, is computed once.  For a call, one pass over the plan finds the value at each source, and what tracing
would do there (``GuardAction``).  ``GuardActions`` follows sources of unusual kinds one by one.
"""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from torch._dynamo.regions.trace.containers import SubscriptPath
from torch._dynamo.regions.trace.guard_facts import GuardFact, is_implied
from torch._dynamo.regions.trace.module_hooks import Numbers, is_dict_of_hooks, state_of_hooks
from torch._dynamo.regions.trace.objects import (
    MISSING,
    RunsCode,
    attribute_of,
    find_in_class,
    is_empty_ordered_dict,
    is_exact,
    item_of,
    own_attributes,
)
from torch._dynamo.regions.trace.skeleton import Skeleton, skeleton_of
from torch._dynamo.regions.trace.sources import Step, step_of
from torch._dynamo.regions.trace.substitution import (
    UNKNOWN,
    GuardActions,
    Resolver,
    SourceBinding,
    bare,
    is_found_in_class,
    is_in_class,
)
from torch._dynamo.regions.trace.unguarded import unguarded_state
from torch._guards import ChainedSource, Source


class PlanStep(NamedTuple):
    """One source of the plan."""

    source: Source
    # id of ``source``, the key of ``SourceSubstitution.bindings``.
    id: int
    step: Step
    # Number of the step of its base; -1 without one.
    base: int
    # Name of the attribute, or the index of the item.
    key: Any
    # The value at ``source`` in the traced call.
    old: Any
    # The object's class, for an attribute that the object itself has and its class does not override; else None.
    holder: Any = None
    # Whether the value was found in the dictionary of a class.
    in_class: bool = False
    skeleton: Skeleton | None = None


class CheckPlan:
    """The sources of a read set, ordered so that each comes after its base."""

    def __init__(self, roots: Iterable[Source], resolve: Resolver) -> None:
        """``roots``: the sources of arguments, which differ from call to call."""
        self._roots = set(roots)
        self._resolve = resolve
        self.steps: list[PlanStep] = []
        self._numbers: dict[Source, int] = {}

    def number(self, source: Source) -> int:
        """The number of the step at ``source``.  Adds the step, and those of its bases, if it is new.

        Raises NoStep.
        """
        known = self._numbers.get(source)
        if known is not None:
            return known
        step, key, base = Step.OTHER, None, -1
        if source not in self._roots and isinstance(source, ChainedSource):
            step, key = step_of(source)
            base = self.number(source.base)
        try:
            old = self._resolve(source)
        except Exception:
            step, old = Step.OTHER, UNKNOWN  # nothing stands there: following it raises
        number = self._numbers[source] = len(self.steps)
        holder = _class_of_holder(self.steps[base].old, key) if step is Step.ATTRIBUTE else None
        self.steps.append(
            PlanStep(source, id(source), step, base, key, old, holder, is_found_in_class(source), skeleton_of(source))
        )
        return number

    def objects(self) -> dict[int, list[int]]:
        """id of each object in the plan that is compared by identity -> numbers of its steps."""
        found: dict[int, list[int]] = {}
        for number, step in enumerate(self.steps):
            if step.old is not UNKNOWN and not is_exact(step.old):
                found.setdefault(id(step.old), []).append(number)
        return found

    def follow(self, actions: GuardActions) -> list[SourceBinding]:
        """The binding of each step in the call of ``actions``.  Raises what following a source raises."""
        bindings: list[Any] = [None] * len(self.steps)
        known = actions.substitution.bindings
        own_of = object.__getattribute__
        for index, (source, number, step, base, key, old, holder, in_class, skeleton) in enumerate(self.steps):
            if step is Step.OTHER or (step is Step.EVALUATED and not bindings[base].same):
                bindings[index] = binding = actions.look(source)
                if not binding.moves and old is not UNKNOWN:
                    binding.value = old
                continue
            above = bindings[base]
            if number not in known:
                known[number] = SourceBinding(source, None, above.moves, skeleton, above)
            bindings[index] = binding = known[number]
            at = above.value
            if above.same:  # tracing a frame does not change the program's objects
                value = old
            elif step is Step.ATTRIBUTE:
                found = own_of(at, "__dict__") if type(at) is holder else ()
                value = found[key] if key in found else attribute_of(at, key)
            elif step is Step.ITEM:
                value = item_of(at, key)
            else:
                value = at
            binding.value = value
            actions.settle(binding, above, value is old, in_class)
        return bindings


def _class_of_holder(value: Any, name: Any) -> Any:
    """The class of ``value``, if ``attribute_of`` finds ``name`` in the object itself and not in the class."""
    kind = type(value)
    if issubclass(kind, type) or name not in (own_attributes(value) or ()):
        return None
    found = find_in_class(kind, name)
    return kind if found is MISSING or find_in_class(type(found), "__set__") is MISSING else None


class Checks:
    """An entry's condition, by steps of its plan."""

    def __init__(self, condition: Any, resolve: Resolver) -> None:
        paths: list[SubscriptPath] = condition.paths
        roots = {s for sources in condition.leaf_sources for s in sources}.union(p.element for p in paths)
        self.plan = CheckPlan(roots, resolve)
        number = self.plan.number
        facts: list[GuardFact] = condition.facts
        by_source = {s: list(of_source) for s, of_source in itertools.groupby(facts, operator.attrgetter("source"))}
        # (number of a step, facts)
        self.facts = [(number(source), of_source) for source, of_source in by_source.items()]
        states = [(number(source), state) for source, state in condition.states]
        # Numbers of steps at dicts of hooks: Note [Module hooks by their code].
        every = self.plan.steps
        self.hooks = {i for i, s in enumerate(every) if s.base >= 0 and is_dict_of_hooks(every[s.base].old, s.key)}
        self.states = [(i, state_of_hooks(every[i].old) if i in self.hooks else state) for i, state in states]
        self._sort_facts()
        makers = {s: [fact.make for fact in of_source] for s, of_source in by_source.items()}
        makers.update(condition.indices)
        # (number of a step, makers of the traced call's guards there, whether Dynamo tracks the object)
        self.installs = [
            (n := number(source), makers.get(source, ()), id(self.plan.steps[n].old) in condition.tracked)
            for source in dict.fromkeys((*condition.sources, *condition.indices))
        ]
        # Those of them whose guards the frame had made before the traced call, which may not have read them.
        found_there: set[Source] = condition.found_there
        self.found_there = [install for install in self.installs if self.plan.steps[install[0]].source in found_there]
        # Sources of numbers that Dynamo treated as constants in the traced call.
        self.numbers = [fact.source for fact in facts if fact.may_have_a_symbol]
        # (number of a step, makers), for lookups in a class
        self.in_classes = [
            (index, makers) for index, makers, _ in self.installs if is_in_class(self.plan.steps[index].source)
        ]
        # ``unmoved`` and ``distinct``: one step for each object that is the same in every call, and for each other
        # object. ``same``: (further step of an object, the object's step in one of these lists).
        self.unmoved: list[int] = []
        self.distinct: list[int] = []
        self.same: list[tuple[int, int]] = []
        for i, steps in self.plan.objects().items():
            # Prefer the source by which the traced call knows the object, since the guards on the object are behind it.
            owner = condition.tracked.get(i)
            own = (s for s in steps if owner is not None and bare(self.plan.steps[s].source) == bare(owner))
            first = next(own, steps[0])
            (self.unmoved if i in condition.unmoved else self.distinct).append(first)
            # Once Dynamo has realized a module, the module has a second source of another kind, with the same name.
            way = bare(self.plan.steps[first].source)
            self.same += [(index, first) for index in steps if bare(self.plan.steps[index].source) != way]
        self.aliases = dict(self.same)

    def _sort_facts(self) -> None:
        """Drops facts that follow from an object's state, and separates the many empty dicts of hooks."""
        stated = {i: self.plan.steps[i].old for i, _ in self.states}
        left = [
            (i, [f for f in of_step if i not in stated or not is_implied(f, stated[i])]) for i, of_step in self.facts
        ]
        # (number of a step, facts that the object's state does not imply)
        self._other_facts = [(i, of_step) for i, of_step in left if of_step]
        # Numbers of steps at empty dicts of the class that modules keep their hooks in.
        empty = unguarded_state(collections.OrderedDict())
        self._empty = [i for i, state in self.states if state == empty]
        self._stated = [(i, state) for i, state in self.states if state != empty]

    def state_at(self, index: int, value: Any) -> Hashable:
        """What tracing may read without a guard of ``value``, which stands at a step of the plan.

        None, which is no object's state, if it is of another class, or if only the program's code could tell.
        """
        if type(value) is not type(self.plan.steps[index].old):
            return None
        try:
            return state_of_hooks(value) if index in self.hooks else unguarded_state(value)
        except RunsCode:
            return None

    def numbers_of_hooks(self, bindings: list[SourceBinding]) -> dict[tuple[int, str], Numbers]:
        """(number of a module's step, which dict of hooks) -> the numbers of the hooks there."""
        every = self.plan.steps
        return {
            (every[i].base, every[i].key): {old: [new] for old, new in zip(every[i].old, bindings[i].value)}
            for i in self.hooks
        }

    def hold(self, bindings: list[SourceBinding]) -> bool:
        """Whether all facts and states hold in this call.  If not, lookup.py checks them one by one for the reason."""
        for i in self._empty:
            binding = bindings[i]
            if not binding.same and not is_empty_ordered_dict(binding.value):
                return False
        for i, state in self._stated:
            binding = bindings[i]
            if not binding.same and self.state_at(i, binding.value) != state:
                return False
        for i, facts in self._other_facts:
            for fact in facts:
                if not bindings[i].same and not fact.holds(bindings[i].value):
                    return False
        return True
