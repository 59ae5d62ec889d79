"""Reuse of a traced region: saves what a trace depended on, and finds the entry that a new call may reuse.

``save`` turns a traced call into an entry, or says why it cannot.  ``find`` checks the entries with
the same fingerprint (region_arguments.py) one by one: what stands behind the new arguments must
pass every guard and be shaped and shared like what stood behind the old ones, and nothing that the
traced call met may be changed in this frame.  See Note [A read set is everything behind the
arguments] in region_reads.py for why that is complete.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.fx
from torch._dynamo import guards as dynamo_guards
from torch._dynamo.region_arguments import Arguments, CannotReuse
from torch._dynamo.region_boundary import value_storages
from torch._dynamo.region_calls import RegionCall
from torch._dynamo.region_effects import write_effects
from torch._dynamo.region_held import Behind, Given, Held, Path, value_of
from torch._dynamo.region_identity import constant_key, lifted_key
from torch._dynamo.region_legality import writes_memory_only
from torch._dynamo.region_looks import appearance, cells_of, exact_key, tensor_state
from torch._dynamo.region_operands import build_as_traced, inputs_from, name_of, operands_of, sharing, value_at
from torch._dynamo.region_outcomes import ReuseMissReason
from torch._dynamo.region_reads import Observer, changed_among, come_by, pending, reachable, sources_held
from torch._dynamo.region_results import RecipeWriter
from torch._dynamo.region_route import Route
from torch._dynamo.region_transport import (
    Fate,
    Fates,
    Place,
    Resolver,
    Transport,
    bare,
    has_identity,
    resolver,
    root_of,
)
from torch._dynamo.source import LocalCellSource
from torch._dynamo.variables.functions import UserFunctionVariable
from torch._dynamo.variables.misc import CellVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable, UnspecializedPythonVariable
from torch._guards import ChainedSource, InvokeSubgraphReuseCondition, InvokeSubgraphReuseEntry, Source


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


Node = torch.fx.Node

# What a guard's maker may be bound to and still mean the same for another source.
_PLAIN = (str, int, bool, type(None), type, Source)
# Guards that can be made of any value.
_OF_VALUES = ("CONSTANT_MATCH", "EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH", "ID_MATCH", "CLOSURE_MATCH", "CLASS_MATCH")


class Match(NamedTuple):
    """An entry that a call may reuse, and what the check has found for it."""

    entry: InvokeSubgraphReuseEntry
    fates: Fates
    operands: list[Any]  # proxies


def save(
    tx: InstructionTranslatorBase,
    arguments: Arguments,
    observer: Observer,
    call: RegionCall,
    result: VariableTracker,
) -> InvokeSubgraphReuseEntry:
    """The entry of a call that was just traced.

    Raises CannotReuse when no later call may be stamped out of it.
    """
    writer = RecipeWriter(tx, arguments, call.nodes, observer.holding)
    existing = _changed(arguments, observer)
    effects = write_effects(tx, observer, existing, writer)
    untouched = _untouched(arguments, observer)
    _check_pending(tx, observer, existing, untouched)
    if unbacked := next((n for n in call.nodes if "unbacked_bindings" in n.meta), None):
        raise CannotReuse(ReuseMissReason.UNBACKED_SYMBOL, f"{unbacked} makes a size that depends on data")
    writes = _writes(tx, call, writer.outside)
    recipe = writer.write_result(result)
    inputs = inputs_from(tx, arguments, call.operands)
    condition = _condition(tx, arguments, observer, existing, untouched)
    entry: Any = InvokeSubgraphReuseEntry  # type checkers know stock's fields
    return entry(call, condition, inputs, sharing(call.operands), writer.results, recipe, effects, writes)


def _writes(tx: InstructionTranslatorBase, call: RegionCall, outside: set[int]) -> list[int]:
    """Numbers of the operands in whose memory the call writes.

    Raises CannotReuse when a write may change more of a tensor than its memory: its shape, or that autograd records it.
    """
    written: set[int] = set()
    for node in call.nodes:
        for operand in tx.output.region_tracker.written_operands(node):
            found = outside.intersection(value_storages(operand.meta.get("example_value")))
            if found and not writes_memory_only(node):
                raise CannotReuse(ReuseMissReason.WRITES_A_TENSOR, f"{node} writes to {operand}")
            written |= found
    places = []
    for place, node in enumerate(call.operands):
        value = node.meta.get("example_value")
        if not written.intersection(value_storages(value)):
            continue
        if value.requires_grad:
            raise CannotReuse(ReuseMissReason.WRITES_A_TENSOR, f"{node}, which requires grad")
        places.append(place)
    return places


def _changed(arguments: Arguments, observer: Observer) -> list[VariableTracker]:
    """Trackers of the objects that the call changed but did not make."""
    given = {id(leaf.tracker) for leaf in arguments.leaves}
    changed = dict.fromkeys(observer.changed)
    return [t for t in changed if t.source is not None or id(t) in given or _existing(t)]


def _untouched(arguments: Arguments, observer: Observer) -> set[Source]:
    """Elements of indexed containers that the call did not come by, neither through the container nor by another way.

    Raises CannotReuse when it came by the element that it indexed by another way too.
    """
    holding = observer.holding
    others = [s for leaf in arguments.leaves for s in leaf.sources]
    others += sources_held(observer.loaded + observer.read_pending)
    for path in holding.paths:
        if path.seen.is_realized() or any(root_of(s, (path.element,)) for s in others):
            raise CannotReuse(ReuseMissReason.INDEX_NOT_ALONE, path.element.name)
    return holding.untouched - {root_of(s, holding.untouched) for s in (*others, *observer.looked_at())}


def _check_pending(
    tx: InstructionTranslatorBase, observer: Observer, existing: list[VariableTracker], untouched: set[Source]
) -> None:
    made = observer.made_since()
    if old := next((t for t in observer.read_pending if id(t) not in made), None):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(old))
    # What the call itself has changed is as it was before, if it was not changed then.
    now = {id(tracker) for tracker in existing if tracker not in observer.before}
    met = (t for t in reachable(observer.met()) if not _is_under(t, untouched))
    if old := changed_among(tx, met, now):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(old))


def _existing(tracker: VariableTracker) -> bool:
    return tracker.mutation_type is not None and tracker.mutation_type.scope == 0


def _condition(
    tx: InstructionTranslatorBase,
    arguments: Arguments,
    observer: Observer,
    changed: list[VariableTracker],
    untouched: set[Source],
) -> InvokeSubgraphReuseCondition:
    holding = observer.holding
    leaf_sources = [leaf.sources for leaf in arguments.leaves]
    roots = {s for sources in leaf_sources for s in sources}.union(path.element for path in holding.paths)

    ends = roots | untouched

    def is_behind(source: Source) -> bool:
        return root_of(source, ends) in roots

    for leaf in arguments.leaves:
        if issubclass(type(leaf.tracker), Held):
            continue  # what was looked at of it is pinned
        source = leaf.tracker.unwrap().source
        behind_it = source is not None and any(root_of(s, (bare(source),)) for s in leaf.sources)
        if source is not None and not behind_it:
            # Sources behind it begin with one that the fingerprint of another call does not show.
            raise CannotReuse(ReuseMissReason.UNKNOWN_CAPTURE, f"{leaf.sources[0].name} is also {source.name}")
    resolve = resolver(tx)
    known = tx.output.guards.source_to_guards
    trackers = tx.output.variable_tracker_cache
    free = (holding.indices - observer.sources) | _lifted(observer, resolve)
    indices = {s: [g.create_fn for g in known[s]] for s in free if is_behind(s)}
    behind = dict.fromkeys(s for s in known if known[s] and is_behind(s) and s not in indices)
    guards = [_guard(guard, resolve) for s in behind for guard in known[s]]
    # In the order in which tracing met them: calls that are stamped out make the inputs of the graph in this order, and
    # the order of a set of sources is another one in each process.
    looked_at = sorted((s for s in observer.looked_at() if is_behind(s)), key=operator.attrgetter("name"))
    met = list(dict.fromkeys((*behind, *looked_at)))
    # A function among the arguments is compared by identity, and so are its cells.
    functions = (leaf.sources for leaf in arguments.leaves if type(leaf.tracker.unwrap()) is UserFunctionVariable)
    same_ones = set(itertools.chain.from_iterable(functions))
    cells = list(cells_of((s for s in met if root_of(s, ends) not in same_ones), resolve))
    _check_cells(tx, observer, changed, {id(resolve(cell)) for cell in cells})
    met = list(dict.fromkeys((*met, *cells)))
    elsewhere = _elsewhere(observer, roots, resolve)
    objects, distinct, same = _objects(tx, met, elsewhere, resolve)
    tensors = []
    for source in met:
        tracker = dict.get(trackers, source)
        seen = tracker.unwrap() if tracker is not None and tracker.is_realized() else None
        if isinstance(seen, (SymNodeVariable, UnspecializedPythonVariable)):
            raise CannotReuse(ReuseMissReason.SYMBOLIC_NUMBER, source.name)
        if isinstance(seen, TensorVariable):
            tensors.append((source, tensor_state(seen)))
    # A held argument has no sources.
    fixed = come_by(observer, [leaf.tracker for leaf in arguments.leaves if leaf.sources])
    # Of what the call has changed behind an argument, another call has its own, which is looked at by its source.
    own = {id(t) for t in changed if t.source is not None and is_behind(t.source)}
    condition: Any = InvokeSubgraphReuseCondition  # type checkers know stock's fields
    return condition(
        leaf_sources,
        [g for g in guards if g is not None],
        objects,
        distinct,
        same,
        elsewhere,
        tensors,
        holding.pins,
        holding.paths,
        indices,
        # What they hold is looked up now: what a container holds later on, without being changed, was not met.
        [t for t in dict.fromkeys(reachable(observer.met())) if id(t) not in own and not _is_under(t, untouched)],
        fixed.intersection(s for sources in leaf_sources for s in sources),
        sorted(filter(is_behind, tx.output.guard_on_key_order), key=operator.attrgetter("name")),
        None,
    )


def _check_cells(
    tx: InstructionTranslatorBase, observer: Observer, changed: list[VariableTracker], behind: set[int]
) -> None:
    """Raises CannotReuse when the call met new contents of a cell behind an argument: another call has its own cell."""
    known = tx.output.side_effects.id_to_variable
    own = {id(known[i]) for i in behind if i in known}
    if cell := next((b.where for b in observer.holding.bound if id(b.where) in own), None):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, f"a {type(cell).__name__}")
    if cell := next((t for t in changed if id(t) in own), None):
        raise CannotReuse(ReuseMissReason.SIDE_EFFECT, f"it changes a {type(cell).__name__} behind an argument")


def _lifted(observer: Observer, resolve: Resolver) -> set[Source]:
    """Sources of opaque objects that are lifted where an operator takes them, and that the call has not looked into."""
    found = set()
    for source in observer.looked_at():
        try:
            if source not in observer.listener.opened and lifted_key(resolve(source)):
                found.add(source)
        except Exception:
            continue  # nothing there when the frame begins
    return found


def _is_under(tracker: VariableTracker, sources: set[Source]) -> bool:
    return tracker.source is not None and root_of(tracker.source, sources) is not None


def _elsewhere(observer: Observer, roots: set[Source], resolve: Resolver) -> dict[int, Source]:
    """Objects that the call met at sources that no argument leads to, by id: they are the same in every call."""
    found: dict[int, Source] = {}
    for source in dict.fromkeys((*observer.looked_at(), *sources_held(observer.met()))):
        if root_of(source, roots):
            continue
        try:
            value = resolve(source)
        except Exception:
            continue  # not there when the frame begins
        if has_identity(value):
            found.setdefault(id(value), source)
    return found


def _guard(guard: Any, resolve: Resolver) -> tuple[Any, Any, Any, Any] | None:
    kind = guard.create_fn_name()
    if kind in ("TENSOR_MATCH", "DUPLICATE_INPUT"):
        return None  # made again where the tensor is; compared as identity, for all objects
    check = dynamo_guards.GUARD_VALUE_DISPATCH.get(kind)
    if check is dynamo_guards.SKIP_GUARD:
        return None  # about the global state, not about the source
    source = guard.originating_source
    bound = guard.create_fn.keywords.values() if isinstance(guard.create_fn, functools.partial) else ()
    if not isinstance(check, dynamo_guards.GuardCheckSpec) or not all(isinstance(v, _PLAIN) for v in bound):
        raise CannotReuse(ReuseMissReason.UNSUPPORTED_GUARD, f"{kind} on {source.name}")
    try:
        value = resolve(source)
        return source, check, (check.get_metadata_fn(guard, value), exact_key(value)), guard.create_fn
    except Exception as e:
        raise CannotReuse(ReuseMissReason.UNSUPPORTED_GUARD, f"{kind} on {source.name}: {e}") from None


def _objects(
    tx: InstructionTranslatorBase, met: list[Source], elsewhere: dict[int, Source], resolve: Resolver
) -> tuple[list[Any], list[Source], list[tuple[Source, Source]]]:
    """What objects at ``met`` look like, which are different ones, and which are one."""
    objects: list[Any] = []
    first: dict[int, Source] = {}
    same: list[tuple[Source, Source]] = []
    trackers = tx.output.side_effects.id_to_variable
    for source in sorted(met, key=lambda s: s.name):
        try:
            value = resolve(source)
        except Exception:
            continue  # nothing there, or nothing that stands still: a guard says so, if it mattered
        if isinstance(value, (torch.nn.Module, dict, set, frozenset)) or type(value).__module__ != "builtins":
            objects.append((source, appearance(value)))
        if not has_identity(value):
            continue
        if (other := elsewhere.get(id(value))) is not None:
            same.append((source, other))
            continue
        owner = trackers.get(id(value))
        if owner is not None and type(owner.source) is LocalCellSource:
            raise CannotReuse(ReuseMissReason.UNKNOWN_CAPTURE, f"{source.name}, a cell of the frame")
        if owner is not None and owner.source is not None and owner.source.name != source.name:
            same.append((source, owner.source))
        elif (one := first.setdefault(id(value), source)).name != source.name:
            same.append((source, one))
    return objects, list(first.values()), same


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
            if entry.call.key is None:
                _check(tx, arguments, entry, fates)
            else:
                _check_kinds(entry.condition, fates)
            return Match(entry, fates, operands_of(tx, arguments, entry, fates))
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
        if type(index) not in (int, str) or (isinstance(within, list) and index < 0):
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

    def __init__(self, condition: InvokeSubgraphReuseCondition, resolve: Resolver) -> None:
        paths: list[Path] = condition.paths  # type: ignore[attr-defined]
        roots = {s for sources in condition.leaf_sources for s in sources}.union(p.element for p in paths)
        self.route = Route(roots, resolve)
        number = self.route.number
        guards: list[Any] = condition.guards
        self.guards = [
            (number(source), [(check.eval_fn, *expected) for _, check, expected, _ in of_source])
            for source, of_source in itertools.groupby(guards, operator.itemgetter(0))
        ]
        self.objects = [(number(source), looks) for source, looks in condition.objects]
        self.distinct = [number(source) for source in condition.distinct]
        self.same = [(number(one), number(other)) for one, other in condition.same]


def _check(tx: InstructionTranslatorBase, arguments: Arguments, entry: InvokeSubgraphReuseEntry, fates: Fates) -> None:
    condition: Any = entry.condition
    if changed := changed_among(tx, condition.met):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(changed))
    checks = condition.checks = condition.checks or _Checks(condition, fates.resolve)
    try:
        places = checks.route.follow(fates)
    except Exception as e:
        raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{type(e).__name__}: {e}") from None
    _check_guards(checks, places, fates)
    _check_identities(checks, places, condition.elsewhere, fates)
    own = {id(places[i].value) for i in checks.distinct}
    for held in arguments.lists if entry.effects else ():
        # The call appends to it: it must be none of those that it looks at by another way.
        value = held.real(tx)
        if value is not None and (id(value) in own or id(value) in condition.elsewhere):
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, name_of(held.bottom))
    own.update(id(places[i].value) for i, _ in checks.same)
    trackers = tx.output.side_effects.id_to_variable
    known = [trackers[i] for i in own if i in trackers]
    if changed := pending(tx, known) or next((t for t in known if _is_new_in(tx, t)), None):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(changed))
    _check_built(tx, condition, fates)


def _check_kinds(condition: InvokeSubgraphReuseCondition, fates: Fates) -> None:
    """Whether the guards of a call can be made for one that is like it, as the user says."""
    guards: list[Any] = condition.guards
    for source, check, (expected, _), make in guards:
        value = value_at(fates.value, source)
        kind = getattr(make, "func", make).__name__
        if kind not in _OF_VALUES and not check.eval_fn(value, expected):
            raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{kind} on {fates.transport(source).name}")


def _is_new_in(tx: InstructionTranslatorBase, tracker: VariableTracker) -> bool:
    """Whether it is a cell that the frame has bound anew."""
    return isinstance(tracker, CellVariable) and tx.output.side_effects.is_modified(tracker)


def _check_guards(checks: _Checks, places: list[Place], fates: Fates) -> None:
    for i, of_source in checks.guards:
        place = places[i]
        if not place.same:
            value = place.value
            for evaluate, expected, exact in of_source:
                if not evaluate(value, expected) or exact_key(value) != exact:
                    new = fates.transport(place.source).name
                    raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{new} is {value!r:.80}, not {expected!r:.80}")
    for i, looks in checks.objects:
        place = places[i]
        if not place.same and appearance(place.value) != looks:
            raise CannotReuse(ReuseMissReason.OBJECT_DIFFERS, fates.transport(place.source).name)


def _check_built(tx: InstructionTranslatorBase, condition: InvokeSubgraphReuseCondition, fates: Fates) -> None:
    """Compares what is decided when a tracker is built: metadata of tensors, and whether a number is a constant.

    The trackers are those that tracing the call would build, with their guards and their history of dynamic sizes.
    """
    tensors: list[Any] = condition.tensors  # type: ignore[attr-defined]
    for source, state in tensors:
        if _differs(fates, source):
            tracker = build_as_traced(tx, fates, source).unwrap()
            if not isinstance(tracker, TensorVariable) or tensor_state(tracker) != state:
                raise CannotReuse(ReuseMissReason.CAPTURE_DIFFERS, fates.transport(source).name)
    guards: list[Any] = condition.guards
    for source, _, (_, exact), make in guards:
        own = exact is not None and _makes_constant(make) and fates(source) is Fate.OWN
        if own and type(fates.value(source)) in (int, float):
            _check_constant(tx, fates, source)
    for source in condition.indices:
        if fates(source) is Fate.OWN and not lifted_key(fates.value(source)):
            _check_constant(tx, fates, source)


def _check_constant(tx: InstructionTranslatorBase, fates: Fates, source: Source) -> None:
    if not build_as_traced(tx, fates, source, allow_lazy_constant=False).is_python_constant():
        raise CannotReuse(ReuseMissReason.SYMBOLIC_NUMBER, fates.transport(source).name)


def _makes_constant(make: Any) -> bool:
    return getattr(make, "__name__", "") in ("CONSTANT_MATCH", "EQUALS_MATCH")


def _differs(fates: Fates, source: Source) -> bool:
    """Whether there may be something else at ``source`` in this call."""
    try:
        return fates.may_differ(source)
    except Exception as e:
        raise CannotReuse(ReuseMissReason.GUARD_FAILS, f"{fates.transport(source).name}: {e}") from None


def void_maker() -> Any:
    """The maker of guards of which Dynamo makes none, as it is configured: that a module has no hooks.

    Nearly half of what is noted of a call is of this kind.  Reuse compares hooks by ``appearance``.
    """
    skipped = torch._dynamo.config.skip_nnmodule_hook_guards
    return dynamo_guards.GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT if skipped else None


def transported_guards(match: Match) -> list[tuple[Source, Any]]:
    """The guards that tracing the call would install, and that say something: source and maker of each."""
    fates, condition = match.fates, match.entry.condition
    found = []
    void = void_maker()
    indices = ((source, make) for source, makers in condition.indices.items() for make in makers)
    for source, make in (*((source, make) for source, _, _, make in condition.guards), *indices):
        if make is void:
            continue
        place = fates.look(source)
        fate = place.fate
        if fate is Fate.OWN:
            found.append((fates.transport.of(place), make))
        elif fate is Fate.KNOWN:
            new, known = fates.transport.of(place), fates.known(fates.value(source))
            if known is not None:
                make = dynamo_guards.make_dupe_guard(new, known)
            if make is not None:
                found.append((new, make))
        elif fate is Fate.BEHIND_KNOWN and (behind := fates.behind_known(source)) != source:
            found.append((behind, make))
    for one, other in condition.same:
        new = fates.transport(one)
        if (
            fates(one) in (Fate.OWN, Fate.KNOWN)
            and (make := dynamo_guards.make_dupe_guard(new, fates.transport(other))) is not None
        ):
            found.append((new, make))
    return found


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


def _needs_source(condition: InvokeSubgraphReuseCondition, root: Source) -> bool:
    """Whether more is known of an argument with the source ``root`` than what the fingerprint holds."""
    guards: list[Any] = condition.guards
    exact = [g[0] for g in guards] + [s for pair in condition.same for s in pair] + list(condition.elsewhere.values())
    if root in exact:
        return True
    behind = exact + [o[0] for o in condition.objects] + condition.distinct
    return any(s != root and root_of(s, (root,)) for s in behind)


def _check_identities(checks: _Checks, places: list[Place], elsewhere: dict[int, Source], fates: Fates) -> None:
    seen: set[int] = set()
    for i in checks.distinct:
        value = id(places[i].value)
        if value in seen or value in elsewhere:
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, fates.transport(places[i].source).name)
        seen.add(value)
    for i, j in checks.same:
        if places[i].value is not places[j].value:
            names = [fates.transport(places[k].source).name for k in (i, j)]
            raise CannotReuse(ReuseMissReason.ALIASING_DIFFERS, " and ".join(names))
