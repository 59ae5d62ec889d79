"""Finds the entry that a call of a region may be stamped out of: the objects that its read set leads to must be alike.

``find`` checks the entries with the same fingerprint (fingerprint.py) one by one.

Note [Reuse is an isomorphism of objects]
Let R be the sources that the traced call read, ``old(s)`` the object that stood at one of them, and ``new(s)`` the one
at the transported source in the new call.  The call may be reused when

- ``old(s) -> new(s)`` is one to one *by identity*: equal ones only to equal ones, distinct ones to distinct ones.  Only
  plain constants (``region_objects.EXACT``) go by value; what kind of object it is, and whether Dynamo tracks it, is no
  matter;
- an object that the call met by a source that no argument leads to (a global, a cell, another layer's name for it) goes
  to itself, as that source is the same in every call;
- every fact holds of the image: each guard on the source (guard_facts.py), what tracing sees without a guard
  (``unguarded_state``, ``tensor_state``), and that the frame has changed none of it since.

The guards of the new call follow from the same pass (``Fate``), by what Dynamo's builder does at each source: an object
that the frame knows by another source gets an alias guard to it, and what is behind it is guarded there; any other gets
the guards that the traced call has at that source, and is known to the frame by it from then on.  There is no list of
kinds of objects here that could be incomplete.  Where kinds matter, a table has a decision for each: guards in
guard_facts.py, sources in sources.py, values in values.py; what has none is traced, and a test walks
Dynamo's own lists.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._dynamo import guards as dynamo_guards
from torch._dynamo.regions.keys import constant_key, lifted_key
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.trace.containers import Path
from torch._dynamo.regions.trace.expressions import Behind, Given, value_of
from torch._dynamo.regions.trace.fingerprint import Arguments
from torch._dynamo.regions.trace.guard_facts import OF_VALUES, GuardFact
from torch._dynamo.regions.trace.objects import EXACT, is_a, unguarded_state
from torch._dynamo.regions.trace.operands import build_as_traced, name_of, operands_of, value_at
from torch._dynamo.regions.trace.plan import Route
from torch._dynamo.regions.trace.read_set import changed_among, pending
from torch._dynamo.regions.trace.state import tensor_state
from torch._dynamo.regions.trace.substitution import (
    Fate,
    Fates,
    Place,
    Resolver,
    Transport,
    bare,
    is_in_class,
    resolver,
    root_of,
)
from torch._dynamo.variables.misc import CellVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._guards import ChainedSource, InvokeSubgraphReuseCondition, InvokeSubgraphReuseEntry, Source


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


class Match(NamedTuple):
    """An entry that a call may reuse, and what the check has found for it."""

    entry: InvokeSubgraphReuseEntry
    fates: Fates
    # What is known of each stop of the entry's route.
    places: list[Place]
    operands: list[Any]  # proxies


def find(
    tx: InstructionTranslatorBase, arguments: Arguments, entries: list[InvokeSubgraphReuseEntry]
) -> Match | CannotReuse:
    """The first of ``entries`` that the call may reuse, else why the last one may not be."""
    resolve = resolver(tx)
    why = CannotReuse(ReuseMissReason.ARGUMENTS_DIFFER)
    for entry in entries:
        try:
            transport = _transport(arguments, entry.condition)
            _check_held(tx, arguments, entry, transport, resolve)
            fates = Fates(tx, transport, resolve)
            places = _follow(entry.condition, fates)
            if entry.call.key is None:
                _check(tx, arguments, entry, places, fates)
            else:
                _check_alike(entry.condition, places, fates)
            return Match(entry, fates, places, operands_of(tx, arguments, entry, fates))
        except CannotReuse as e:
            why = e
    return why


def _check_held(
    tx: InstructionTranslatorBase,
    arguments: Arguments,
    entry: InvokeSubgraphReuseEntry,
    transport: Transport,
    resolve: Resolver,
) -> None:
    """Compares the constants that somebody looked at, and adds the elements that are found by an index."""
    condition = entry.condition

    def leaf(expression: Any) -> Any:
        if isinstance(expression, Given):
            return arguments.held[expression.number].as_python_constant()
        if isinstance(expression, Behind):
            return value_at(resolve, transport(expression.source))
        return expression.load(tx).as_python_constant()

    def value(expression: Any) -> Any:
        try:
            return value_of(expression, leaf)
        except Exception as e:
            raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{expression}: {e}") from None

    pins: list[Any] = condition.pins  # type: ignore[attr-defined]
    paths: list[Path] = condition.paths  # type: ignore[attr-defined]
    for path in paths:
        index, within = value(path.index), value_at(resolve, transport(path.container))
        if type(index) not in (int, str) or (is_a(within, list) and index < 0):
            # Dynamo finds such an element by another source: no guard is made for this one.
            raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{path.index} is {index!r:.80}")
        new = dataclasses.replace(path.element, base=transport(path.container), index=index)  # type: ignore[call-arg]
        value_at(resolve, new)
        container = tx.output.side_effects.id_to_variable.get(id(within))
        if container is not None and (changed := changed_among(tx, [container])):
            raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(changed))
        if not transport.add(path.element, new):
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, path.element.name)
    for expression, expected in pins if entry.call.key is None else ():
        found = value(expression)
        if constant_key(found) != expected:
            raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{expression} is {found!r:.80}, not {expected!r:.80}")


class _Checks:
    """What an entry's condition says of the stops of one route."""

    def __init__(self, condition: Any, resolve: Resolver) -> None:
        paths: list[Path] = condition.paths
        roots = {s for sources in condition.leaf_sources for s in sources}.union(p.element for p in paths)
        self.route = Route(roots, resolve)
        number = self.route.number
        facts: list[GuardFact] = condition.facts
        by_source = {s: list(of_source) for s, of_source in itertools.groupby(facts, operator.attrgetter("source"))}
        # (stop, facts)
        self.facts = [(number(source), of_source) for source, of_source in by_source.items()]
        self.states = [(number(source), state) for source, state in condition.states]
        makers = {s: [fact.make for fact in of_source] for s, of_source in by_source.items()}
        makers.update(condition.indices)
        # (stop, makers of the guards that the traced call has there, whether the frame tracks what stands there)
        self.installs = [
            (n := number(source), makers.get(source, ()), id(self.route.stops[n].old) in condition.tracked)
            for source in dict.fromkeys((*condition.sources, *condition.indices))
        ]
        # Sources of numbers that the traced call found to be constants.
        self.numbers = [fact.source for fact in facts if fact.may_have_a_symbol]
        # (stop, makers) where something is looked up in a class
        self.in_classes = [
            (stop, makers) for stop, makers, _ in self.installs if is_in_class(self.route.stops[stop].source)
        ]
        # Stops of one object each: of those that stay the same, and of the others; then (stop, stop in one of these
        # lists) for further stops of an object.
        self.unmoved: list[int] = []
        self.distinct: list[int] = []
        self.same: list[tuple[int, int]] = []
        for i, stops in self.route.objects().items():
            # The one by which the traced call knows the object: what it learned of it is behind that.
            owner = condition.tracked.get(i)
            own = (s for s in stops if owner is not None and bare(self.route.stops[s].source) == bare(owner))
            first = next(own, stops[0])
            (self.unmoved if i in condition.unmoved else self.distinct).append(first)
            # A module has a source of its own kind besides once Dynamo has looked at it: one name, and one object.
            way = bare(self.route.stops[first].source)
            self.same += [(stop, first) for stop in stops if bare(self.route.stops[stop].source) != way]
        self.aliases = dict(self.same)


def _follow(condition: Any, fates: Fates) -> list[Place]:
    """What is known in this call of each stop of the entry's route.  Raises CannotReuse when there is nothing at
    one."""
    condition.checks = condition.checks or _Checks(condition, fates.resolve)
    try:
        places: list[Place] = condition.checks.route.follow(fates)
    except Exception as e:
        raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{type(e).__name__}: {e}") from None
    return places


def _check(
    tx: InstructionTranslatorBase,
    arguments: Arguments,
    entry: InvokeSubgraphReuseEntry,
    places: list[Place],
    fates: Fates,
) -> None:
    """Raises CannotReuse unless the objects of the call are alike to those of the traced one."""
    condition: Any = entry.condition
    checks: _Checks = condition.checks
    _check_unchanged(tx, condition)
    _check_facts(checks, places, fates)
    _check_identities(checks, places, condition.unmoved, fates)
    objects = {id(places[i].value) for i in checks.distinct}
    for held in arguments.lists if entry.effects else ():
        # The call appends to it: it must be none of those that it looks at by another way.
        value = held.real(tx)
        if value is not None and (id(value) in objects or id(value) in condition.unmoved):
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, name_of(held.bottom))
    trackers = tx.output.side_effects.id_to_variable
    known = [tracker for i in objects if (tracker := trackers.get(i)) is not None]
    if changed := pending(tx, known) or next((t for t in known if _is_new_in(tx, t)), None):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(changed))
    _check_built(tx, condition, fates)


def _check_alike(condition: Any, places: list[Place], fates: Fates) -> None:
    """Whether the guards of a call can be made for one that is like it, as the user says."""
    for i, facts in condition.checks.facts:
        for fact in facts:
            if fact.kind not in OF_VALUES and not fact.holds(places[i].value):
                name = fates.transport(places[i].source).name
                raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{fact.kind} on {name}")


def _check_unchanged(tx: InstructionTranslatorBase, condition: Any) -> None:
    """Whether what the traced call met is as it was then."""
    if changed := changed_among(tx, condition.met):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(changed))
    for tracker, state in condition.unmoved_tensors:
        if tensor_state(tracker) != state:
            raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(tracker))


def _is_new_in(tx: InstructionTranslatorBase, tracker: VariableTracker) -> bool:
    """Whether it is a cell that the frame has bound anew."""
    return isinstance(tracker, CellVariable) and tx.output.side_effects.is_modified(tracker)


def _shown(value: Any) -> str:
    """What messages say of a value.  The program's own __repr__ is not run for that."""
    return f"{value!r:.80}" if type(value) in EXACT else f"a {type(value).__name__}"


def _check_facts(checks: _Checks, places: list[Place], fates: Fates) -> None:
    for i, facts in checks.facts:
        place = places[i]
        if place.same:
            continue
        for fact in facts:
            if not fact.holds(place.value):
                name, seen, old = fates.transport(place.source).name, _shown(place.value), _shown(fact.value)
                raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{fact.kind} on {name}: {seen}, not {old}")
    for i, state in checks.states:
        place = places[i]
        if not place.same and unguarded_state(place.value) != state:
            raise CannotReuse(ReuseMissReason.OBJECT_DIFFERS, fates.transport(place.source).name)


def _check_built(tx: InstructionTranslatorBase, condition: InvokeSubgraphReuseCondition, fates: Fates) -> None:
    """Compares what is decided when a tracker is built: metadata of tensors, and whether a number is a constant.

    The trackers are those that tracing the call would build, with their guards and their history of dynamic sizes.
    """
    found: Any = condition
    for source, state in found.tensors:
        # Built, if another, as tracing the call would; the frame may have changed it meanwhile if it is the same.
        place = fates.look(source)
        known = tx.output.side_effects.id_to_variable.get(id(place.value)) if place.same else None
        tracker = known if known is not None else build_as_traced(tx, fates, source).unwrap()
        if not isinstance(tracker, TensorVariable) or tensor_state(tracker) != state:
            raise CannotReuse(ReuseMissReason.CAPTURE_DIFFERS, fates.transport(source).name)
    for source in found.checks.numbers:
        if fates(source) is Fate.OWN:
            _check_constant(tx, fates, source)
    for source in condition.indices:
        if fates(source) is Fate.OWN and not lifted_key(fates.value(source)):
            _check_constant(tx, fates, source)


def _check_constant(tx: InstructionTranslatorBase, fates: Fates, source: Source) -> None:
    if not build_as_traced(tx, fates, source, allow_lazy_constant=False).is_python_constant():
        raise CannotReuse(ReuseMissReason.SYMBOLIC_NUMBER, fates.transport(source).name)


def void_maker() -> Any:
    """The maker of guards of which Dynamo makes none, as it is configured: that a module has no hooks.

    Nearly half of what is noted of a call is of this kind.  Reuse compares hooks by ``unguarded_state``.
    """
    skipped = torch._dynamo.config.skip_nnmodule_hook_guards
    return dynamo_guards.GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT if skipped else None


def transported_guards(match: Match) -> list[tuple[Source, Any]]:
    """The guards that tracing the call would install, and that say something: source and maker of each."""
    fates, places = match.fates, match.places
    checks: _Checks = match.entry.condition.checks
    void = void_maker()
    found: list[tuple[Source, Any]] = []
    for stop, makers, tracked in checks.installs:
        place = places[stop]
        if place.fate is Fate.UNCHANGED or place.fate is Fate.IN_CLASS:
            continue
        if place.fate is Fate.KNOWN:
            found += _alias_guards(fates, place, fates.known(place.value))
            continue
        if place.fate is Fate.OWN and tracked and (first := checks.aliases.get(stop)) is not None:
            found += _alias_guards(fates, place, fates.transport.of(places[first]))
        if makers:
            new = fates.transport.of(place) if place.fate is Fate.OWN else fates.behind_known(place.source)
            if new is not place.source:
                found += [(new, make) for make in fates.unguarded_absences(place, makers) if make is not void]
    return [(source, make) for source, make in found if make is not None]


def _alias_guards(fates: Fates, place: Place, known: Source | None) -> list[tuple[Source, Any]]:
    """The guard that the object at ``place`` is the one at ``known``."""
    if type(place.value) is types.CellType:
        return []  # Dynamo takes a cell that it knows, whichever function has it
    new = fates.transport.of(place)
    return [(new, dynamo_guards.make_dupe_guard(new, known))]


def keep_class_lookups(match: Match) -> None:
    """Notes the lookups in classes that tracing the call would have been the first to make, as Dynamo does."""
    for stop, makers in match.entry.condition.checks.in_classes:
        place = match.places[stop]
        if place.fate is Fate.OWN:
            match.fates.keep_class_lookup(place, makers)


def read_by(match: Match) -> tuple[list[Source], list[VariableTracker]]:
    """Sources that tracing the call would have asked for, and trackers of existing objects that it would have met."""
    condition: Any = match.entry.condition
    behind = (*condition.sources, *(path.element for path in condition.paths), *condition.indices)
    return [*map(match.fates.transport, behind), *condition.unmoved.values()], condition.met


def to_be_tracked(match: Match) -> list[Place]:
    """Where the objects stand that tracing the call would track, and that the frame does not know yet."""
    checks: _Checks = match.entry.condition.checks
    places = (match.places[stop] for stop, _, tracked in checks.installs if tracked and stop not in checks.aliases)
    return [place for place in places if place.fate is Fate.OWN]


def _transport(arguments: Arguments, condition: InvokeSubgraphReuseCondition) -> Transport:
    roots: dict[Source, Source] = {}
    if len(arguments.leaves) != len(condition.leaf_sources):  # the user gave both one key
        raise CannotReuse(ReuseMissReason.ARGUMENTS_DIFFER, "as many of them as in the earlier call")
    for olds, leaf in zip(condition.leaf_sources, arguments.leaves, strict=True):
        for i, old in enumerate(olds):
            if i < len(leaf.sources):
                new = leaf.sources[i]
            elif _needs_source(condition, old):
                raise CannotReuse(ReuseMissReason.NO_SOURCE, old.name)
            else:
                continue  # all that is known of the old argument is in the fingerprint
            if roots.setdefault(old, new) != new:
                raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, old.name)
    for old in condition.fixed:  # type: ignore[attr-defined]
        base = old.base if isinstance(old, ChainedSource) else None
        above = root_of(base, roots) if base is not None else None
        expected = Transport({above: roots[above]})(old) if above is not None else old
        if roots.get(old) != expected:
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, f"{old.name} is come by in another way too")
    return Transport(roots)


def _needs_source(condition: Any, root: Source) -> bool:
    """Whether more is known of an argument with the source ``root`` than what the fingerprint holds."""
    if any(fact.source == root for fact in condition.facts) or root in condition.ties:
        return True
    return any(s != root and root_of(s, (root,)) for s in (*condition.sources, *condition.unmoved.values()))


def _check_identities(checks: _Checks, places: list[Place], unmoved: dict[int, Source], fates: Fates) -> None:
    """Whether equal objects went to equal ones only, distinct ones to distinct ones, and unmoved ones to themselves."""
    stops = checks.route.stops
    for i in checks.unmoved:
        if places[i].value is not stops[i].old:
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, fates.transport(places[i].source).name)
    seen: set[int] = set()
    for i in checks.distinct:
        value = id(places[i].value)
        if value in seen or value in unmoved:
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, fates.transport(places[i].source).name)
        seen.add(value)
    for i, j in checks.same:
        if places[i].value is not places[j].value:
            names = [fates.transport(places[k].source).name for k in (i, j)]
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, " and ".join(names))
