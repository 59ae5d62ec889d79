"""The order in which an entry's sources are followed, each after the one that it is behind.

An entry is compared with many calls, and asks for the same sources each time.  So the order of the sources, and how
each leads to the next, is computed once.  For a call, one pass over them finds what stands at each, and what tracing
would do there (``GuardAction``).  Sources of unusual kinds are left to ``GuardActions``, which follows them one by one.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch._dynamo.regions.trace.containers import SubscriptPath
from torch._dynamo.regions.trace.guard_facts import GuardFact
from torch._dynamo.regions.trace.objects import EXACT, attribute_of, item_of
from torch._dynamo.regions.trace.sources import Step, step_of
from torch._dynamo.regions.trace.substitution import UNKNOWN, GuardActions, Resolver, SourceBinding, bare, is_in_class
from torch._guards import ChainedSource, Source


class PlanStep(NamedTuple):
    """One source of the plan."""

    source: Source
    step: Step
    # Number of the step that it is behind.
    base: int
    # Name of the attribute, or the index.
    key: Any
    # What stood there in the traced call.
    old: Any


class CheckPlan:
    """The sources of a read set in an order in which each comes after its base."""

    def __init__(self, roots: Iterable[Source], resolve: Resolver) -> None:
        """``roots`` are the sources of arguments, which are others in another call."""
        self._roots = set(roots)
        self._resolve = resolve
        self.steps: list[PlanStep] = []
        # source -> its number
        self._numbers: dict[Source, int] = {}

    def number(self, source: Source) -> int:
        """The number of the step at ``source``, which is added with all that it is behind if it is new.

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
            step, old = Step.OTHER, UNKNOWN  # nothing there: following it raises
        number = self._numbers[source] = len(self.steps)
        self.steps.append(PlanStep(source, step, base, key, old))
        return number

    def objects(self) -> dict[int, list[int]]:
        """id of each object on the way that is known by identity -> numbers of its steps."""
        found: dict[int, list[int]] = {}
        for number, step in enumerate(self.steps):
            if step.old is not UNKNOWN and type(step.old) not in EXACT:
                found.setdefault(id(step.old), []).append(number)
        return found

    def follow(self, actions: GuardActions) -> list[SourceBinding]:
        """What is known of each step in the call of ``actions``.  Raises what following a source raises."""
        bindings: list[SourceBinding] = []
        for source, step, base, key, old in self.steps:
            if step is Step.OTHER or (step is Step.EVALUATED and not bindings[base].same):
                binding = actions.look(source)
                if not binding.moves and old is not UNKNOWN:
                    binding.value = old
                bindings.append(binding)
                continue
            above = bindings[base]
            binding = actions.substitution.take(source, above.moves)
            bindings.append(binding)
            if above.same:  # the objects that the program has are not changed while the frame is traced
                value = old
            elif step is Step.ATTRIBUTE:
                value = attribute_of(above.value, key)
            elif step is Step.ITEM:
                value = item_of(above.value, key)
            else:
                value = above.value
            binding.value = value
            actions.settle(binding, above, value is old)
        return bindings


class Checks:
    """What an entry's condition says of the steps of one plan."""

    def __init__(self, condition: Any, resolve: Resolver) -> None:
        paths: list[SubscriptPath] = condition.paths
        roots = {s for sources in condition.leaf_sources for s in sources}.union(p.element for p in paths)
        self.plan = CheckPlan(roots, resolve)
        number = self.plan.number
        facts: list[GuardFact] = condition.facts
        by_source = {s: list(of_source) for s, of_source in itertools.groupby(facts, operator.attrgetter("source"))}
        # (number of a step, facts)
        self.facts = [(number(source), of_source) for source, of_source in by_source.items()]
        self.states = [(number(source), state) for source, state in condition.states]
        makers = {s: [fact.make for fact in of_source] for s, of_source in by_source.items()}
        makers.update(condition.indices)
        # (number of a step, makers of the guards that the traced call has there, whether the frame tracks its object)
        self.installs = [
            (n := number(source), makers.get(source, ()), id(self.plan.steps[n].old) in condition.tracked)
            for source in dict.fromkeys((*condition.sources, *condition.indices))
        ]
        # Sources of numbers that the traced call found to be constants.
        self.numbers = [fact.source for fact in facts if fact.may_have_a_symbol]
        # (number of a step, makers) where something is looked up in a class
        self.in_classes = [
            (index, makers) for index, makers, _ in self.installs if is_in_class(self.plan.steps[index].source)
        ]
        # Steps of one object each: of those that stay the same, and of the others; then (step, step in one of these
        # lists) for further steps of an object.
        self.unmoved: list[int] = []
        self.distinct: list[int] = []
        self.same: list[tuple[int, int]] = []
        for i, steps in self.plan.objects().items():
            # The one by which the traced call knows the object: what it learned of it is behind that.
            owner = condition.tracked.get(i)
            own = (s for s in steps if owner is not None and bare(self.plan.steps[s].source) == bare(owner))
            first = next(own, steps[0])
            (self.unmoved if i in condition.unmoved else self.distinct).append(first)
            # A module has a source of its own kind besides once Dynamo has looked at it: one name, and one object.
            way = bare(self.plan.steps[first].source)
            self.same += [(index, first) for index in steps if bare(self.plan.steps[index].source) != way]
        self.aliases = dict(self.same)
