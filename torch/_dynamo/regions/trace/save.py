"""Saves what a traced call depended on, as an entry that later calls may be stamped out of.

Note [A read set is everything behind the arguments] in read_set.py says why the entry's condition is complete;
lookup.py checks the condition.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch.fx
from torch._dynamo import variables
from torch._dynamo.regions.frame import RegionCall
from torch._dynamo.regions.keys import lifted_key, value_storages
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.policies import context_fns, is_its_code
from torch._dynamo.regions.trace.argument_sources import ArgumentSources
from torch._dynamo.regions.trace.built import built_for
from torch._dynamo.regions.trace.effects import write_appends, write_effects
from torch._dynamo.regions.trace.element_stores import changed_argument
from torch._dynamo.regions.trace.fingerprint import Arguments
from torch._dynamo.regions.trace.floats import guards_on_floats, take_out
from torch._dynamo.regions.trace.guard_facts import facts_of, facts_without_guards, in_force
from torch._dynamo.regions.trace.module_hooks import guards_on_numbers, is_dict_of_hooks
from torch._dynamo.regions.trace.objects import RunsCode, is_exact
from torch._dynamo.regions.trace.operands import inputs_from, name_of, seen_offsets, sharing
from torch._dynamo.regions.trace.own_symbols import own_symbols
from torch._dynamo.regions.trace.pending import Pending, pending_read
from torch._dynamo.regions.trace.read_set import (
    ReadSetRecorder,
    changes_among,
    hashed_by,
    reachable,
    reached_otherwise,
    sources_held,
)
from torch._dynamo.regions.trace.recipe import RecipeWriter
from torch._dynamo.regions.trace.state import cells_of, reads_data, states_of, tensor_state
from torch._dynamo.regions.trace.substitution import Resolver, Roots, bare, resolver, root_of
from torch._dynamo.regions.trace.values import check_functions, check_kinds, check_steps
from torch._dynamo.source import LocalCellSource
from torch._dynamo.variables.tensor import TensorVariable
from torch._guards import InvokeSubgraphReuseCondition, InvokeSubgraphReuseEntry, Source
from torch.fx.operator_facts import writes_memory_only


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


_name = operator.attrgetter("name")


def save(
    tx: InstructionTranslatorBase,
    arguments: Arguments,
    recorder: ReadSetRecorder,
    call: RegionCall,
    result: VariableTracker,
) -> InvokeSubgraphReuseEntry:
    """The entry of a call that was just traced.

    Raises CannotReuse if no later call may be stamped out of it.
    """
    take_out(call)
    writer = RecipeWriter(tx, arguments, call.nodes, recorder.deferred)
    existing = _changed(arguments, recorder)
    untouched = _untouched(arguments, recorder)
    behind = ArgumentSources(arguments, recorder, untouched)
    effects = write_effects(tx, recorder, existing, writer, behind)
    by_element = recorder.contents.by_element(recorder.deferred.paths, arguments.leaves)
    if changed := next((t for t in existing if id(t) in arguments.stored_in), None):
        raise CannotReuse(ReuseMissReason.SIDE_EFFECT, f"it changes {name_of(changed)}, which the frame has changed")
    pending = _pending(tx, arguments, recorder, behind, existing, untouched, by_element)
    effects += write_appends(recorder, writer, behind, pending.held)
    if changed := changed_argument(tx, arguments.leaves, by_element):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(changed))
    if unbacked := next(filter(reads_data, call.nodes), None):
        raise CannotReuse(ReuseMissReason.UNBACKED_SYMBOL, f"{unbacked} makes a size that depends on data")
    if names := recorder.events.ran:
        raise CannotReuse(ReuseMissReason.RUNS_CODE, ", ".join(sorted(names)))
    if names := recorder.events.by_identity:
        raise CannotReuse(ReuseMissReason.UNSUPPORTED_VALUE, f"an object's identity, by {', '.join(sorted(names))}")
    if not all(map(is_its_code, context_fns(call.nodes, tx.output.nn_modules))):
        # Dynamo guards the code only: another call's function of the same code may decide otherwise.
        raise CannotReuse(ReuseMissReason.UNSUPPORTED_VALUE, "a checkpoint's context function with cells or defaults")
    writes = _writes(tx, call, writer.outside)
    recipe = writer.write_result(result)
    if writer.has_written(pending.made()):
        raise CannotReuse(ReuseMissReason.UNSUPPORTED_RESULT, "an object that the frame made before the call")
    inputs = inputs_from(tx, arguments, call.operands, pending.tensors())
    condition = _condition(tx, arguments, recorder, behind, existing, untouched, by_element, call.nodes, pending)
    entry: Any = InvokeSubgraphReuseEntry  # type checkers know stock's fields
    results = writer.results, writer.examples, recipe
    shared = sharing(call.operands, seen_offsets(call.nodes, call.operands, tx.output.nn_modules))
    return entry(call, condition, inputs, shared, *results, effects, writes)


def _writes(tx: InstructionTranslatorBase, call: RegionCall, outside: set[int]) -> list[int]:
    """Indices of the operands whose memory the call writes to.

    Raises CannotReuse if a write may change more of a tensor than its memory: its shape, or how autograd records it.
    """
    written: set[int] = set()
    tracker = tx.output.region_tracker
    bodies = tracker.bodies_in(tx.output.nn_modules)
    for node in call.nodes:
        for operand in tracker.written_operands(node, bodies):
            found = outside.intersection(value_storages(operand.meta.get("example_value")))
            if found and not all(map(writes_memory_only, [node, *bodies.writers(node)])):
                raise CannotReuse(ReuseMissReason.WRITES_A_TENSOR, f"{node} writes to {operand}")
            written |= found
    indices = []
    for index, node in enumerate(call.operands):
        value = node.meta.get("example_value")
        if not written.intersection(value_storages(value)):
            continue
        if value.requires_grad:
            raise CannotReuse(ReuseMissReason.WRITES_A_TENSOR, f"{node}, which requires grad")
        indices.append(index)
    return indices


def _changed(arguments: Arguments, recorder: ReadSetRecorder) -> list[VariableTracker]:
    """The trackers of the objects that the call changed but did not make."""
    given = {id(leaf.tracker) for leaf in arguments.leaves}
    changed = dict.fromkeys(recorder.changed)
    return [t for t in changed if t.source is not None or id(t) in given or _existing(t)]


def _untouched(arguments: Arguments, recorder: ReadSetRecorder) -> set[Source]:
    """Elements of indexed containers that the call did not reach, through the container or otherwise.

    Raises CannotReuse if the call reached an element by its index and also by another path.
    """
    deferred = recorder.deferred
    others = [s for leaf in arguments.leaves for s in leaf.sources]
    others += sources_held(recorder.loaded + recorder.read_pending)
    for path in deferred.paths:
        if path.seen.is_realized() or any(root_of(s, (path.element,)) for s in others):
            raise CannotReuse(ReuseMissReason.INDEX_NOT_ALONE, path.element.name)
    roots = Roots(deferred.untouched)
    return deferred.untouched - {roots.of(s) for s in (*others, *recorder.looked_at())}


def _pending(
    tx: InstructionTranslatorBase,
    arguments: Arguments,
    recorder: ReadSetRecorder,
    behind: ArgumentSources,
    existing: list[VariableTracker],
    untouched: set[Source],
    by_element: dict[int, VariableTracker],
) -> Pending:
    """What the call read of the frame's changes, other than those in its key; see ``pending_read``."""
    made = recorder.made_since()
    changed = [t for t in recorder.read_pending if id(t) not in made]
    # An object that only the call has changed was unchanged when the call began.
    now = {id(tracker) for tracker in existing if tracker not in recorder.before}
    roots = Roots(untouched)
    captures = (t for t in reachable(recorder.read_objects(), by_element) if not _is_under(t, roots))
    changed += changes_among(tx, captures, now | by_element.keys() | arguments.stored_in)
    pending = pending_read(tx, recorder, behind, changed)
    pending.check_arguments(arguments.leaves)
    return pending


def _existing(tracker: VariableTracker) -> bool:
    return tracker.mutation_type is not None and tracker.mutation_type.scope == 0


def _condition(
    tx: InstructionTranslatorBase,
    arguments: Arguments,
    recorder: ReadSetRecorder,
    behind: ArgumentSources,
    changed: list[VariableTracker],
    untouched: set[Source],
    by_element: dict[int, VariableTracker],
    nodes: list[torch.fx.Node],
    pending: Pending,
) -> InvokeSubgraphReuseCondition:
    resolve = resolver(tx)
    known = _guards_by_source(tx)
    free = (recorder.deferred.indices - recorder.sources) | _lifted(recorder, resolve)
    indices = {s: [g.create_fn for g in known.get(s, ())] for s in free if behind.holds(s)}
    # In the order of tracing's reads: a reuse makes its guards, and the graph's inputs, in that order.
    guarded = [s for s in known if behind.holds(s) and s not in indices]
    read, looked_at, ends = recorder.read_objects(), recorder.looked_at(), Roots(untouched)
    held = [*sources_held(read), *pending.sources]  # Dynamo may know these by other sources, without a guard
    reached = [s for s in (*looked_at, *map(bare, held)) if behind.holds(s)]
    hashed = hashed_by(recorder, read)
    sources = list(dict.fromkeys((*guarded, *reached, *sorted(filter(behind.holds, hashed), key=_name))))
    cells = list(cells_of((s for s in sources if not behind.is_function(s)), resolve))
    _check_cells(tx, recorder, changed, {id(resolve(cell)) for cell in cells})
    check_kinds(tx, looked_at, recorder.loaded)
    check_steps(sources := list(dict.fromkeys((*sources, *cells))))
    facts = facts_of(map(known.get, guarded), resolve, _opaque_functions(tx, guarded, resolve))
    tracked = _tracked(tx, _values(sources, resolve))
    # Add the source by which Dynamo knows each object: in another call, one object must be at both sources.
    sources = list(dict.fromkeys((*sources, *(s for s in tracked.values() if behind.holds(s)))))
    values = _values(sources, resolve)
    unmoved = _unmoved(tx, dict.fromkeys((*looked_at, *held)), hashed, values, behind, resolve)
    fixed = reached_otherwise(recorder, [leaf.tracker for leaf in arguments.leaves if leaf.sources])  # not deferred
    own = _own(arguments, recorder, behind, changed, by_element, pending)
    captures = [t for t in reachable(read, by_element) if id(t) not in own and not _is_under(t, ends)]
    condition: Any = InvokeSubgraphReuseCondition  # type checkers know stock's fields
    return condition(
        behind.leaf_sources,
        sources,
        [*facts, *facts_without_guards(sources, behind.holds, resolve)],
        _found_there(tx, recorder, guarded, (*behind.roots, *looked_at, *held)),
        states_of(values),
        unmoved,
        tracked,
        _ties(values, unmoved),
        tensors := built_for(tx, sources),
        _unmoved_tensors(recorder, behind, captures),
        recorder.deferred.specialized,
        recorder.deferred.paths,
        recorder.contents.touched(by_element),
        indices,
        # Their elements are listed now: what a container gets later, without a change of it, was not read.
        captures,
        pending,
        fixed.intersection(s for sources in behind.leaf_sources for s in sources),
        sorted(filter(behind.holds, tx.output.guard_on_key_order), key=_name),
        guards_on_numbers(_made_by_call(tx, recorder), _numbers_of_hooks(values, resolve), resolve),
        guards_on_floats(tx, tensors, nodes, arguments.symbols_before[1]),
        own_symbols(tx, tensors, resolve, arguments.symbols_before, nodes),
    )


def _own(
    arguments: Arguments,
    recorder: ReadSetRecorder,
    behind: ArgumentSources,
    changed: list[VariableTracker],
    by_element: dict[int, VariableTracker],
    pending: Pending,
) -> set[int]:
    """ids of trackers that another call may find changed: it has its own there, or compares them otherwise."""
    own = {id(t) for t in changed if t.source is not None and behind.holds(t.source)}
    own |= by_element.keys() | arguments.stored_in | set(map(id, pending.objects))
    return own.union(id(held) for held, _ in recorder.contents.appends(recorder.changed))


def _made_by_call(tx: InstructionTranslatorBase, recorder: ReadSetRecorder) -> Iterable[Any]:
    return itertools.islice(tx.output.guards, recorder.guards_before, None)


def _numbers_of_hooks(values: list[tuple[Source, Any]], resolve: Resolver) -> set[int]:
    named: Any = ((source, value) for source, value in values if getattr(source, "member", None) == "_forward_hooks")
    dicts = (value for source, value in named if is_dict_of_hooks(resolve(source.base), "_forward_hooks"))
    return set(itertools.chain.from_iterable(dicts))


def _opaque_functions(tx: InstructionTranslatorBase, sources: list[Source], resolve: Resolver) -> set[Source]:
    """Sources of the Python functions that Dynamo did not trace, or not all of: their code does not determine them.

    It puts a function into the graph as it is, runs it for a constant, or reads a wrapper's name without a guard.
    """
    trackers = tx.output.variable_tracker_cache
    known = ((s, tracker.unwrap()) for s in sources if (tracker := dict.get(trackers, s)) is not None)
    return {s for s, tracker in known if _is_opaque(tracker) and type(resolve(s)) is types.FunctionType}


def _is_opaque(tracker: VariableTracker) -> bool:
    wraps = any(base.__name__ == "WrapperUserFunctionVariable" for base in type(tracker).__mro__)
    run = getattr(tracker, "is_constant", False) is True  # under assume_constant_result
    return wraps or run or isinstance(tracker, variables.TorchInGraphFunctionVariable)


def _guards_by_source(tx: InstructionTranslatorBase) -> dict[Source, list[Any]]:
    """The current guards by source, without those in Dynamo's index that stronger guards have replaced."""
    guards = tx.output.guards
    index = ((source, in_force(guards, of_source)) for source, of_source in guards.source_to_guards.items())
    return {source: of_source for source, of_source in index if of_source}


def _found_there(
    tx: InstructionTranslatorBase, recorder: ReadSetRecorder, guarded: list[Source], read: Iterable[Source]
) -> set[Source]:
    """Those of ``guarded`` that have no guard of the call's own, and that are not among ``read``."""
    made = {guard.originating_source for guard in _made_by_call(tx, recorder)}
    asked_for = set(map(bare, read))
    return {s for s in guarded if s not in made and bare(s) not in asked_for}


def _values(sources: list[Source], resolve: Resolver) -> list[tuple[Source, Any]]:
    """The values at ``sources`` when the frame begins, without plain constants and sources that lead nowhere.

    Raises CannotReuse if only the program's code could tell.
    """
    found = []
    for source in sources:
        try:
            value = resolve(source)
        except RunsCode as e:
            raise CannotReuse(ReuseMissReason.RUNS_CODE, f"{source.name}: {e}") from None
        except Exception:
            continue  # nothing there, or nothing stable: if that mattered, a guard says so
        if not is_exact(value):
            found.append((source, value))
    return found


def _unmoved(
    tx: InstructionTranslatorBase,
    ways: Iterable[Source],
    hashed: set[Source],
    values: list[tuple[Source, Any]],
    behind: ArgumentSources,
    resolve: Resolver,
) -> dict[int, Source]:
    """id -> source of each object that is the same in every call.

    It is read, or known, at a source behind no argument, or it is a key, which is found by its identity.
    Raises CannotReuse if the call has read a function that ``check_functions`` does not allow.
    """
    found: dict[int, Source] = {}
    for source, value in _values([*(s for s in ways if not behind.begins(s)), *sorted(hashed, key=_name)], resolve):
        found.setdefault(id(value), source)
    trackers = tx.output.side_effects.id_to_variable
    for source, value in values:
        owner = trackers.get(id(value))
        if owner is None or owner.source is None:
            continue
        if type(owner.source) is LocalCellSource:
            raise CannotReuse(ReuseMissReason.UNKNOWN_CAPTURE, f"{source.name}, a cell of the frame")
        if not behind.begins(owner.source):
            # The object's guards are at this source, which is the same in every call.
            found.setdefault(id(value), owner.source)
    check_functions(found.keys() | {id(value) for _, value in values})
    return found


def _tracked(tx: InstructionTranslatorBase, values: list[tuple[Source, Any]]) -> dict[int, Source]:
    """id of each of ``values`` that Dynamo tracks -> the source by which Dynamo knows it."""
    known = ((id(value), tx.output.side_effects.id_to_variable.get(id(value))) for _, value in values)
    return {i: tracker.source for i, tracker in known if tracker is not None and tracker.source is not None}


def _ties(values: list[tuple[Source, Any]], unmoved: dict[int, Source]) -> set[Source]:
    """Sources whose object is also at another source, or is the same in every call."""
    ways: dict[int, set[Source]] = {}
    for source, value in values:
        ways.setdefault(id(value), set()).add(bare(source))
    return {s for i, found in ways.items() if len(found) > 1 or i in unmoved for s in found}


def _unmoved_tensors(
    recorder: ReadSetRecorder, behind: ArgumentSources, captures: list[VariableTracker]
) -> list[tuple[Any, Any]]:
    """Tracker and state of each tensor among ``captures`` that is behind no argument.

    The frame may change what another call sees of such a tensor: its sizes, or whether autograd records it.  Raises
    CannotReuse if the call itself changed that of any tensor: then the state now is not the one that the call read.
    """
    found = []
    for tracker in captures:
        if isinstance(tracker, TensorVariable):
            if recorder.changed_autograd_state(tracker):
                raise CannotReuse(ReuseMissReason.WRITES_A_TENSOR, name_of(tracker))
            if tracker.source is None or not behind.holds(tracker.source):
                found.append((tracker, tensor_state(tracker)))
    return found


def _check_cells(
    tx: InstructionTranslatorBase, recorder: ReadSetRecorder, changed: list[VariableTracker], behind: set[int]
) -> None:
    """Raises CannotReuse if the call bound, or read what the frame bound, in a cell behind an argument."""
    known = tx.output.side_effects.id_to_variable
    own = {id(known[i]) for i in behind if i in known}
    if cell := next((b.where for b in recorder.deferred.bound if id(b.where) in own), None):
        raise CannotReuse(ReuseMissReason.READS_PENDING_STATE, name_of(cell))
    if cell := next((t for t in changed if id(t) in own), None):
        raise CannotReuse(ReuseMissReason.SIDE_EFFECT, f"it changes {name_of(cell)}, behind an argument")


def _lifted(recorder: ReadSetRecorder, resolve: Resolver) -> set[Source]:
    """Sources of opaque objects that become operands (``lifted_key``) and whose contents the call has not read."""
    found = set()
    for source in recorder.looked_at():
        try:
            if source not in recorder.events.opened and lifted_key(resolve(source)):
                found.add(source)
        except Exception:
            continue  # nothing there when the frame begins
    return found


def _is_under(tracker: VariableTracker, sources: Roots) -> bool:
    return tracker.source is not None and sources.of(tracker.source) is not None
