"""Finds the entry that a region call may be stamped out of: one whose read set leads to like objects in this call.

``find`` checks the entries with the same fingerprint (fingerprint.py) one by one.

Note [Reuse is an isomorphism of objects]
Let R be the sources that the traced call read.  For a source ``s`` in R, let ``old(s)`` be the object at ``s`` in the
traced call, and ``new(s)`` the object at the substituted source in the new call.  The new call may reuse the traced one
if

- ``old(s) -> new(s)`` is one to one *by identity*: the same object maps to the same object, and distinct objects map to
  distinct ones.  Only plain constants (``objects.EXACT``) are compared by value.  The kind of an object, and whether
  Dynamo tracks it, do not matter;
- an object that the call read at a source behind no argument (a global, a cell, another layer's name for it) maps to
  itself, since that source is the same in every call;
- every fact about ``old(s)`` holds for ``new(s)``: each guard on the source (guard_facts.py), and the state that
  tracing reads without a guard (``unguarded_state``, ``tensor_state``).  The frame has changed none of this since.

The same pass decides the guards of the new call (``GuardAction``), as Dynamo's builder does at each source.  If the
frame knows the object by another source, the object gets an alias guard to that source, and what is behind the object
is guarded behind that source.  Any other object gets the guards that the traced call has at its source, and the frame
knows the object by this source from then on.  No list of kinds of objects is involved that could be incomplete.  Where
kinds matter, a table has a decision for each: guards in guard_facts.py, sources in sources.py, values in values.py.  A
call that meets a kind without a decision is traced, and a test walks Dynamo's own lists.
"""

from __future__ import annotations

import dataclasses
import itertools
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._dynamo import guards as dynamo_guards
from torch._dynamo.regions.keys import constant_key
from torch._dynamo.regions.outcomes import CannotReuse, Difference, ReuseMissReason
from torch._dynamo.regions.trace.built import build_for_key, check_built
from torch._dynamo.regions.trace.containers import SubscriptPath, untouched_at
from torch._dynamo.regions.trace.deferred import DEFERRED_TYPES
from torch._dynamo.regions.trace.effects import Append
from torch._dynamo.regions.trace.element_stores import changed_argument, containers_by_element
from torch._dynamo.regions.trace.expressions import ArgumentValue, SourceValue, unlike_text, value_of
from torch._dynamo.regions.trace.fingerprint import Arguments, substitution_for
from torch._dynamo.regions.trace.floats import check_floats
from torch._dynamo.regions.trace.guard_facts import can_be_made, has_guard
from torch._dynamo.regions.trace.module_hooks import SAY_MORE, hold_for_numbers, joined, with_numbers
from torch._dynamo.regions.trace.objects import is_a, is_exact
from torch._dynamo.regions.trace.operands import name_of, operands_of, value_at
from torch._dynamo.regions.trace.pending import check_pending
from torch._dynamo.regions.trace.plan import Checks
from torch._dynamo.regions.trace.read_set import changed_among, reachable
from torch._dynamo.regions.trace.state import tensor_state
from torch._dynamo.regions.trace.substitution import (
    GuardAction,
    GuardActions,
    Resolver,
    SourceBinding,
    SourceSubstitution,
    resolver,
)
from torch._dynamo.source import TypeDictSource
from torch._dynamo.variables.misc import CellVariable
from torch._guards import InvokeSubgraphReuseEntry, Source


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


class Match(NamedTuple):
    """An entry that a call may reuse, and what the check found."""

    entry: InvokeSubgraphReuseEntry
    actions: GuardActions
    # One for each step of the entry's plan.
    bindings: list[SourceBinding]
    operands: list[Any]  # proxies


class Contained(NamedTuple):
    """Containers of which a call reads some elements, by the ids of their trackers."""

    indexed: set[int]
    # Those of which the call neither reads nor changes anything else.
    by_element: dict[int, Any]


def find(
    tx: InstructionTranslatorBase, arguments: Arguments, entries: list[InvokeSubgraphReuseEntry]
) -> Match | CannotReuse:
    """The first of ``entries`` (one or more) that the call may reuse; else why the last one cannot be reused."""
    resolve = resolver(tx)
    why = CannotReuse(ReuseMissReason.ARGUMENTS_DIFFER)
    for entry in entries:
        try:
            substitution = substitution_for(arguments, entry.condition)
            contained = _check_deferred(tx, arguments, entry, substitution, resolve)
            actions = GuardActions(tx, substitution, resolve)
            bindings = _follow(entry.condition, actions)
            check_pending(tx, entry.condition.pending, arguments.leaves)  # type: ignore[attr-defined]
            if entry.call.key is None:
                _check(tx, arguments, entry, bindings, actions, contained)
            else:
                _check_alike(entry.condition, bindings, actions)
                check_floats(tx, entry.condition, actions)
                build_for_key(tx, entry.condition, actions, arguments.symbols_before[0])
            return Match(entry, actions, bindings, operands_of(tx, arguments, entry, actions))
        except CannotReuse as e:
            why = e.without_frames()
    return why


def _check_deferred(
    tx: InstructionTranslatorBase,
    arguments: Arguments,
    entry: InvokeSubgraphReuseEntry,
    substitution: SourceSubstitution,
    resolve: Resolver,
) -> Contained:
    """Compares the specialized constants, and adds the elements found by an index to ``substitution``."""
    condition = entry.condition
    indexed = set()

    def leaf(expression: Any) -> Any:
        if isinstance(expression, ArgumentValue):
            found = arguments.held[expression.number].as_python_constant()
        elif isinstance(expression, SourceValue):
            found = value_at(resolve, substitution(expression.source))
        else:
            found = expression.load(tx).as_python_constant()
        if type(found) not in DEFERRED_TYPES:  # an operator would run the program's code
            raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{expression} is a {type(found).__name__}")
        return found

    def value(expression: Any) -> Any:
        try:
            return value_of(expression, leaf)
        except Exception as e:
            raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{expression}: {e}") from None

    specialized: list[Any] = condition.specialized  # type: ignore[attr-defined]
    paths: list[SubscriptPath] = condition.paths  # type: ignore[attr-defined]
    touched = condition.touched  # type: ignore[attr-defined]
    by_element = containers_by_element(tx, touched, lambda source: value_at(resolve, substitution(source)), value)
    if changed := changed_argument(tx, arguments.leaves, by_element):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(changed))
    for path in paths:
        index, within = value(path.index), value_at(resolve, substitution(path.container))
        if type(index) not in (int, str) or (is_a(within, list) and index < 0):
            # Dynamo finds such an element by another source, and makes no guard at this one.
            raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{path.index} is {index!r:.80}")
        new = dataclasses.replace(path.element, base=substitution(path.container), index=index)  # type: ignore[call-arg]
        value_at(resolve, new)
        container = tx.output.side_effects.id_to_variable.get(id(within))
        if container is not None:
            untouched = id(container) in by_element and untouched_at(container, index) is not None
            if changed := None if untouched else changed_among(tx, [container]):
                raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(changed))
            indexed.add(id(container))
        if not substitution.add(path.element, new):
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, path.element.name)
    for expression, expected in specialized if entry.call.key is None else ():
        found = value(expression)
        if constant_key(found) != expected:
            raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{expression}: {unlike_text(found, expected)}")
    return Contained(indexed | by_element.keys(), by_element)


def _follow(condition: Any, actions: GuardActions) -> list[SourceBinding]:
    """The binding of each step of the entry's plan in this call.  Raises CannotReuse if a source leads nowhere."""
    condition.checks = condition.checks or Checks(condition, actions.resolve)
    try:
        bindings: list[SourceBinding] = condition.checks.plan.follow(actions)
    except Exception as e:
        raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{type(e).__name__}: {e}") from None
    return bindings


def _check(
    tx: InstructionTranslatorBase,
    arguments: Arguments,
    entry: InvokeSubgraphReuseEntry,
    bindings: list[SourceBinding],
    actions: GuardActions,
    contained: Contained,
) -> None:
    """Raises CannotReuse unless the call's objects are like the traced call's."""
    condition: Any = entry.condition
    checks: Checks = condition.checks
    _check_unchanged(tx, condition)
    _check_facts(checks, bindings, actions)
    _check_identities(checks, bindings, condition.unmoved, actions)
    for held in arguments.lists if any(isinstance(effect, Append) for effect in entry.effects) else ():
        # The call appends to this list, so it must not read the list by another path.
        value = held.real(tx)
        if value is not None and (id(value) in condition.unmoved or _is_among(value, checks, bindings)):
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, name_of(held.bottom))
    known = [tracker for i in checks.distinct if (tracker := bindings[i].known) is not None]
    told = contained.by_element.keys() | arguments.stored_in | set(map(id, condition.pending.objects))
    # Of what an indexed container holds, the call reads only what has a step of its own.
    if changed := changed_among(tx, reachable(known, contained.indexed), told) or next(
        (t for t in known if _is_new_in(tx, t)), None
    ):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(changed))
    _check_read_by_frame(tx, checks, bindings, actions)
    numbers = joined(checks.numbers_of_hooks(bindings)) if condition.of_hooks else {}
    if not hold_for_numbers(condition.of_hooks, numbers, actions.resolve):
        raise CannotReuse(ReuseMissReason.GUARD_FAILS, "what torch.nn.modules.module says of a hook")
    # The last one: what is built has guards.
    check_built(tx, condition, actions, arguments.symbols_before[0])


def _is_among(value: Any, checks: Checks, bindings: list[SourceBinding]) -> bool:
    return any(bindings[i].value is value for i in checks.distinct)


def _check_alike(condition: Any, bindings: list[SourceBinding], actions: GuardActions) -> None:
    """Raises CannotReuse unless the traced call's guards can be made for a call to which the user gave the same key."""
    for i, facts in condition.checks.facts:
        for fact in facts:
            if not can_be_made(fact, bindings[i].value):
                name = actions.substitution(bindings[i].source).name
                raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{fact.kind} on {name}")


def _check_unchanged(tx: InstructionTranslatorBase, condition: Any) -> None:
    """Raises CannotReuse unless the captures that the traced call read are unchanged."""
    if changed := changed_among(tx, condition.read_objects):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(changed))
    for tracker, state in condition.unmoved_tensors:
        if tensor_state(tracker) != state:
            raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(tracker))


def _is_new_in(tx: InstructionTranslatorBase, tracker: VariableTracker) -> bool:
    """Whether ``tracker`` is a cell that the frame has bound anew."""
    return isinstance(tracker, CellVariable) and tx.output.side_effects.is_modified(tracker)


def _shown(value: Any) -> str:
    """``value`` for messages, without running the program's __repr__."""
    return f"{value!r:.80}" if is_exact(value) else f"a {type(value).__name__}"


def _check_facts(checks: Checks, bindings: list[SourceBinding], actions: GuardActions) -> None:
    if checks.hold(bindings):
        return
    for i, facts in checks.facts:
        binding = bindings[i]
        if binding.same:
            continue
        for fact in facts:
            if not fact.holds(binding.value):
                name, seen, old = actions.substitution(binding.source).name, _shown(binding.value), _shown(fact.value)
                differs = Difference(name, binding.source.name, seen, old)
                raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{fact.kind} on {name}: {seen}, not {old}", differs)
    for i, state in checks.states:
        binding = bindings[i]
        if not binding.same and checks.state_at(i, binding.value) != state:
            raise CannotReuse(ReuseMissReason.OBJECT_DIFFERS, actions.substitution(binding.source).name)


def void_maker() -> Any:
    """The maker of the guard that a module has no hooks, if Dynamo is configured to leave these guards out; else None.

    Nearly half of a call's notes are of this kind.  Reuse compares hooks by ``unguarded_state``.
    """
    skipped = torch._dynamo.config.skip_nnmodule_hook_guards
    return dynamo_guards.GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT if skipped else None


def substituted_guards(match: Match) -> list[tuple[Source, Any]]:
    """Source and maker of each guard that tracing the call would install, without those of ``void_maker``."""
    checks: Checks = match.entry.condition.checks
    void = void_maker()
    numbers = checks.numbers_of_hooks(match.bindings)
    found: list[tuple[Source, Any]] = []
    for install in checks.installs:
        guards = _guards_at(install, checks, match.bindings, match.actions, void)
        found += _with_own_numbers(guards, checks, install[0], numbers)
    if numbers:
        of_hooks, every = match.entry.condition.of_hooks, joined(numbers)  # type: ignore[attr-defined]
        found += itertools.chain.from_iterable(with_numbers(*guard, every) for guard in of_hooks)
    return found


def _with_own_numbers(guards: Iterable[Any], checks: Checks, index: int, numbers: dict[Any, Any]) -> Iterable[Any]:
    """``guards`` at a step of the plan, with the numbers of this call's hooks."""
    step = checks.plan.steps[index]
    own = numbers.get((step.base, SAY_MORE.get(step.key, ""))) if numbers and type(step.key) is str else None
    return itertools.chain.from_iterable(with_numbers(*guard, own) for guard in guards) if own else guards


def _guards_at(
    install: tuple[int, Any, bool], checks: Checks, bindings: list[SourceBinding], actions: GuardActions, void: Any
) -> Iterable[tuple[Source, Any]]:
    """The guards that tracing the call would install at one step of the plan."""
    index, makers, tracked = install
    binding = bindings[index]
    action = binding.action
    if action is GuardAction.SAME or action is GuardAction.CLASS_LOOKUP:
        return ()
    if action is GuardAction.ALIAS:
        return _alias_guards(actions, binding, actions.known(binding.value))
    found: list[tuple[Source, Any]] = []
    own = action is GuardAction.REINSTALL
    if own and tracked and index in checks.aliases:
        found += _alias_guards(actions, binding, actions.substitution.of(bindings[checks.aliases[index]]))
    new = None
    for make in makers if type(binding.source) is not TypeDictSource else actions.unguarded(binding, makers):
        if make is void or make is None:
            continue
        if new is None:
            new = (binding.new or actions.substitution.of(binding)) if own else actions.behind_known(binding.source)
        if new is not binding.source:
            found += ((new, make),)
    return found


def _check_read_by_frame(
    tx: InstructionTranslatorBase, checks: Checks, bindings: list[SourceBinding], actions: GuardActions
) -> None:
    """Raises CannotReuse unless the frame has these guards:

    - Those that the earlier call found there, and may not have read.  Tracing might make none of them: the program
      would recompile for a change that it does not see.
    - Those of an object that the frame knows by another source.  Tracing makes there what the program asks of it, but
      not what building a tracker made at the earlier call's source.  Nothing tells these apart.
    """
    void, numbers = void_maker(), checks.numbers_of_hooks(bindings) if checks.found_there else {}
    found = ((each[0], _guards_at(each, checks, bindings, actions, void)) for each in checks.found_there)
    needed = [_with_own_numbers(guards, checks, index, numbers) for index, guards in found]
    for index, makers, _ in checks.installs:
        if bindings[index].action is GuardAction.ALIAS and (known := actions.known(bindings[index].value)) is not None:
            needed.append([(known, make) for make in makers if make is not void and make is not None])
    for source, make in itertools.chain.from_iterable(needed):
        if not has_guard(tx.output.guards, source, make):
            raise CannotReuse(ReuseMissReason.READ_BY_FRAME, source.name)


def _alias_guards(actions: GuardActions, binding: SourceBinding, known: Source | None) -> list[tuple[Source, Any]]:
    """The guard that the object at ``binding`` is the object at ``known``."""
    if type(binding.value) is types.CellType:
        return []  # Dynamo reuses the tracker of a known cell without a guard, whichever function holds the cell
    new = actions.substitution.of(binding)
    if known is not None and known.name == new.name:
        return []  # what a cell holds has two sources of one name
    make = dynamo_guards.make_dupe_guard(new, known)
    return [(new, make)] if make is not None else []


def keep_class_lookups(match: Match) -> None:
    """Notes, as Dynamo does, the lookups in classes that tracing the call would have made first."""
    checks: Checks = match.entry.condition.checks
    for index, makers in checks.in_classes:
        binding = match.bindings[index]
        if binding.action is GuardAction.REINSTALL:
            match.actions.keep_class_lookup(binding, makers)


def read_by(match: Match) -> tuple[list[Source], list[VariableTracker], list[Source], list[VariableTracker]]:
    """Sources and trackers of existing objects that tracing the call would have read, the sources that it would hash,
    and the objects of which it would have read the frame's changes."""
    condition, new = match.entry.condition, match.actions.substitution
    known: Any = condition
    behind = (*known.sources, *(path.element for path in known.paths), *known.indices)
    unmoved = [(source, new(source)) for source in known.unmoved.values()]
    hashed = [at for source, at in unmoved if at != source]
    return [*map(new, behind), *(at for _, at in unmoved)], known.read_objects, hashed, known.pending.objects


def to_be_tracked(match: Match) -> list[SourceBinding]:
    """The bindings of the objects that tracing the call would track and that the frame does not know yet."""
    checks: Checks = match.entry.condition.checks
    bindings = (
        match.bindings[index] for index, _, tracked in checks.installs if tracked and index not in checks.aliases
    )
    return [binding for binding in bindings if match.actions.is_new(binding)]


def _check_identities(
    checks: Checks, bindings: list[SourceBinding], unmoved: dict[int, Source], actions: GuardActions
) -> None:
    """Raises CannotReuse unless old objects map to new ones one to one, and unmoved objects to themselves."""
    steps = checks.plan.steps
    for i in checks.unmoved:
        if bindings[i].value is not steps[i].old:
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, actions.substitution(bindings[i].source).name)
    ids = [id(bindings[i].value) for i in checks.distinct]
    if len(set(ids)) < len(ids) or not unmoved.keys().isdisjoint(ids):
        first = next(n for n, number in enumerate(ids) if number in unmoved or number in ids[:n])
        source = bindings[checks.distinct[first]].source
        raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, actions.substitution(source).name)
    for i, j in checks.same:
        if bindings[i].value is not bindings[j].value:
            names = [actions.substitution(bindings[k].source).name for k in (i, j)]
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, " and ".join(names))
