"""One region call: stamped out of an earlier call if an entry matches, traced otherwise.

1. fingerprint  structure and metadata of the arguments       fingerprint.py
2. find         an entry whose read set holds here            lookup.py
3. stamp out    one call node, the guards, the result         stamp.py, recipe.py
or
2. trace        flat, under a recorder                        flat.py, read_set.py
3. save         an entry, or the reason that there is none    save.py

Under ``torch._dynamo.config.verify_region_reuse`` a call with a match is traced and compared instead (verify.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.regions.facts import begin_call
from torch._dynamo.regions.frame import FRAME, PerFrame, RegionCall
from torch._dynamo.regions.options import verifying, weights_are_attributes
from torch._dynamo.regions.outcomes import CannotReuse, Outcome, ReuseMissReason
from torch._dynamo.regions.trace.deferred import DeferredConstant, OpenedTuples, defer_list, deferred_type, hold
from torch._dynamo.regions.trace.differences import arguments_differ
from torch._dynamo.regions.trace.events import RECORDERS
from torch._dynamo.regions.trace.fingerprint import Arguments
from torch._dynamo.regions.trace.flat import trace_flat
from torch._dynamo.regions.trace.lookup import Match, find, read_by
from torch._dynamo.regions.trace.read_set import ReadSetRecorder, reachable
from torch._dynamo.regions.trace.save import save
from torch._dynamo.regions.trace.stamp import stamp_out
from torch._dynamo.regions.trace.substitution import resolver
from torch._dynamo.regions.trace.verify import expected_state, note_operators, verify
from torch._dynamo.source import GlobalSource
from torch._dynamo.variables.misc import CellVariable, NewGlobalVariable
from torch.fx import traceback
from torch.utils._ambient_state import autocast_dtypes, global_state_key


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


log = logging.getLogger(__name__)
# Whether Dynamo makes weights attributes of the frame's graph, by its own rules for that, and not inputs.
_WEIGHTS_ARE_ATTRIBUTES: PerFrame[bool] = PerFrame(lambda output: weights_are_attributes(output.export))


def call_region(
    tx: InstructionTranslatorBase,
    call: RegionCall,
    fn: VariableTracker,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
    limit: int,
) -> VariableTracker:
    """The result of calling ``fn``.  At most ``limit`` entries of ``fn`` are kept."""
    call.began, call.seconds = time.time_ns(), -time.perf_counter()  # until it has ended
    if FRAME.of(tx.output).open is None:
        begin_call()
    opened = OpenedTuples()
    held = None
    try:
        held = PreparedArguments(tx, fn, args, kwargs, opened)
    except CannotReuse as e:
        call.note_miss(e)
    except Exception as e:
        if verifying() or isinstance(e, TorchDynamoException):  # Dynamo's own: a graph break, or an attempt begun anew
            raise
        log.warning("%s: traced: comparing its arguments failed", call.function, exc_info=True)
    if held is None:
        opened.close()
        try:
            return trace_flat(tx, call, lambda: _traced(tx, call, fn, args, kwargs))
        finally:
            call.stop_clock()
    try:
        return _call(tx, call, fn, args, kwargs, held, limit)
    finally:
        opened.close()
        call.stop_clock()


def _call(
    tx: InstructionTranslatorBase,
    call: RegionCall,
    fn: VariableTracker,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
    held: PreparedArguments,
    limit: int,
) -> VariableTracker:
    cache: Any = tx.output.tracing_context.hop_dispatch_set_cache.get_cache(torch._higher_order_ops.invoke_subgraph)
    match, arguments = None, held.variants[0]
    for variant in held.variants:
        if match is None:
            match, arguments = _find(tx, call, variant, cache, held.bucket(variant, call)), variant
    if match is not None and not verifying():
        result = _reuse(tx, call, arguments, cache, match)
        if result is not None:
            return result
        match = None  # without a match, nothing is verified
    expected = expected_state(tx, match, arguments) if match is not None else None
    with ReadSetRecorder(tx) as recorder:
        for each in (*held.constants, *held.variants[0].lists):
            recorder.deferred.add(each)
        result = trace_flat(tx, call, lambda: _traced(tx, call, fn, held.args, held.kwargs))
    try:
        if call.graph is None:
            return result  # rolled back, or in another graph
        if (global_state_key(), _symbolic_state(tx)) != held.state:
            raise CannotReuse(ReuseMissReason.CHANGES_GLOBAL_STATE)
        arguments = held.variant_for(recorder)
        entry = save(tx, arguments, recorder, call, result)
    except CannotReuse as e:
        if match is not None and expected is not None:
            verify(tx, match, None, e, expected)
        call.note_miss(e)
        return result
    except Exception:
        if verifying():
            raise
        log.warning("%s: not kept for reuse: reading what it depends on failed", call.function, exc_info=True)
        return result
    if match is not None and expected is not None:
        verify(tx, match, entry, None, expected)
        return result
    entry.function, entry.bucket = arguments.function, held.bucket(arguments, call)
    _add_others(tx, entry, held, recorder, arguments, fn, args, kwargs)
    if verifying():
        note_operators(tx, entry)
    cache.add(entry, limit)
    return result


def _traced(
    tx: InstructionTranslatorBase,
    call: RegionCall,
    fn: VariableTracker,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    return fn.call_function(tx, args, kwargs) if call.run is None else call.run(fn, tx, args, kwargs)


class PreparedArguments:
    """The arguments of a call as it is traced: constants and lists are deferred.

    A call with a list among its arguments has two ``variants``: with the list deferred, and with the list's elements.
    """

    def __init__(
        self,
        tx: InstructionTranslatorBase,
        fn: VariableTracker,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
        opened: OpenedTuples,
    ) -> None:
        """Raises CannotReuse if the call cannot be compared with others."""
        if len(tx.output.tracers) > 1:
            raise CannotReuse(ReuseMissReason.INSIDE_HIGHER_ORDER_OP)
        if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
            raise CannotReuse(ReuseMissReason.INSIDE_TRANSFORM)
        if _WEIGHTS_ARE_ATTRIBUTES.of(tx.output):
            raise CannotReuse(ReuseMissReason.WEIGHTS_ARE_ATTRIBUTES)
        self.constants: list[DeferredConstant] = []
        plain = _defer_all(args, kwargs, self.constants, opened)
        self.args, self.kwargs = _defer_lists(*plain)
        self.state = (global_state_key(), _symbolic_state(tx))
        self.bindings = _bindings(tx)
        self.variants: list[Arguments] = []
        # The first variant fails on a list that occurs twice, the second on elements that cannot be compared.
        with contextlib.suppress(CannotReuse):
            self.variants.append(Arguments(tx, fn, self.args, self.kwargs, self.constants))
        if not self.variants:
            self.args, self.kwargs = plain
        if not self.variants or self.variants[0].lists:
            with contextlib.suppress(CannotReuse) if self.variants else contextlib.nullcontext():
                self.variants.append(Arguments(tx, fn, *plain, self.constants))

    def bucket(self, arguments: Arguments, call: RegionCall) -> tuple[Any, ...]:
        key = arguments.key if call.key is None else ("of the user", call.key)
        return arguments.function, _compiled_as(call, key), self.state, frozenset(self.bindings.items())

    def variant_for(self, recorder: ReadSetRecorder) -> Arguments:
        """The variant that covers what the call saw of its lists."""
        deferred = recorder.deferred
        appended = {id(held.bottom) for held in self.variants[0].lists if held.appended}
        if appended and not deferred.saw_a_list:
            # If the call also reaches the list by another path, it sees there what it has appended.
            deferred.saw_a_list = any(id(tracker) in appended for tracker in reachable(recorder.read_objects()))
        if not deferred.saw_a_list:
            return self.variants[0]
        if self.variants[-1].lists:
            raise CannotReuse(ReuseMissReason.UNSUPPORTED_ARGUMENT, "what a list holds")
        return self.variants[-1]


def _compiled_as(call: RegionCall, key: Hashable) -> Hashable:
    """``key`` with the mark's options: calls share a body only if the same options compile it."""
    return key if call.options is None else ("under options", id(call.options), key)


def _defer_all(
    args: list[VariableTracker], kwargs: dict[str, VariableTracker], made: list[DeferredConstant], opened: OpenedTuples
) -> tuple[list[VariableTracker], dict[str, VariableTracker]]:
    return [hold(a, made, opened) for a in args], {n: hold(a, made, opened) for n, a in kwargs.items()}


def _defer_lists(
    args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> tuple[list[VariableTracker], dict[str, VariableTracker]]:
    return [defer_list(a) for a in args], {name: defer_list(a) for name, a in kwargs.items()}


def _add_others(
    tx: InstructionTranslatorBase,
    entry: Any,
    held: PreparedArguments,
    recorder: ReadSetRecorder,
    then: Arguments,
    fn: VariableTracker,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> None:
    """Files the entry also under the keys and bindings that the next call will have.

    In a loop over blocks, the first block takes an input that Dynamo has not realized, and the others take results.
    If each call counts in a global, only the first call finds the global as it was before the frame.
    """
    keys, bindings = [entry.bucket[1]], [entry.bucket[-1]]
    if entry.call.key is None and (looked_at := _looked_at(tx, then, fn, args, kwargs)) is not None:
        keys.append(_compiled_as(entry.call, looked_at))
    if (bound := _bindings(tx)) != held.bindings and _only_counts(tx, held.bindings, bound, recorder):
        bindings.append(frozenset(bound.items()))
    function, _, state, _ = entry.bucket
    for key, binding in list(itertools.product(keys, bindings))[1:]:
        bucket = function, key, state, binding
        entry.others.append(dataclasses.replace(entry, bucket=bucket, others=[], main=entry))


def _looked_at(
    tx: InstructionTranslatorBase,
    then: Arguments,
    fn: VariableTracker,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> Hashable | None:
    """The key of the arguments after the call has read them; None unless the key, and only the key, has changed."""
    constants: list[DeferredConstant] = []
    opened = OpenedTuples()
    held = _defer_all(args, kwargs, constants, opened)
    if then.lists:
        held = _defer_lists(*held)
    try:
        now = Arguments(tx, fn, *held, constants)
    except CannotReuse:
        return None  # the call has changed the kind of an argument
    finally:
        opened.close()
    if now.key == then.key or [leaf.sources for leaf in then.leaves] != [leaf.sources for leaf in now.leaves]:
        return None
    return now.key


def _only_counts(
    tx: InstructionTranslatorBase, before: dict[Any, Any], now: dict[Any, Any], recorder: ReadSetRecorder
) -> bool:
    """Whether the call newly bound only globals, to constants of the same type, and read their values only deferred."""
    resolve = resolver(tx)
    for (where, name), kind in now.items():
        if before.get((where, name)) != kind and (
            (where, name) in before
            or not isinstance(kind, type)
            or type(where) is not GlobalSource
            or where in recorder.sources
            or name not in tx.output.root_tx.f_globals
            or type(resolve(where)) is not kind
        ):
            return False
    return True


def _symbolic_state(tx: InstructionTranslatorBase) -> Hashable:
    """The program's global state as Dynamo models it while tracing."""
    modes = tx.symbolic_torch_function_state
    return (
        # What intercepts operators: the modes that the program has entered, and whether modes and subclasses are on.
        tuple(modes.mode_stack),
        modes.torch_function_mode_enabled,
        modes.torch_function_subclass_enabled,
        # What a bare ``raise`` or sys.exc_info() sees.
        tuple(tx.exn_vt_stack[i] for i in range(len(tx.exn_vt_stack))),
        # What autocast would cast to. While it is off, only the program asks.
        autocast_dtypes(),
        # Annotations that Dynamo adds to the operators that it records.
        repr(traceback.current_meta.get("custom")),
    )


def _bindings(tx: InstructionTranslatorBase) -> dict[Any, Any]:
    """What the frame has bound globals and cells to so far: under other bindings, a function does other things.

    A constant is represented by its type, because a call sees the constant deferred.
    """
    bound: dict[Any, Any] = {}
    for tracker, stored in tx.output.side_effects.store_attr_mutations.items():
        if tracker.source is None or not isinstance(tracker, (NewGlobalVariable, CellVariable)):
            continue
        for name, value in stored.items():
            where = tracker if isinstance(tracker, CellVariable) else tracker.source
            bound[where, name] = deferred_type(value) or value
    return bound


def _find(
    tx: InstructionTranslatorBase, call: RegionCall, arguments: Arguments, cache: Any, bucket: Any
) -> Match | None:
    if not cache.knows(arguments.function):
        return None
    try:
        found: Match | CannotReuse
        if entries := [e for e in cache.find(bucket) if e.call.graph is tx.output.graph]:
            found = find(tx, arguments, entries)
        else:
            found = arguments_differ(bucket, cache.buckets_of(arguments.function))
    except Exception:
        if verifying():
            raise
        log.warning("%s: traced again: looking for an earlier call failed", call.function, exc_info=True)
        return None
    if isinstance(found, CannotReuse):
        call.note_miss(found)
        return None
    return found


def _reuse(
    tx: InstructionTranslatorBase, call: RegionCall, arguments: Arguments, cache: Any, match: Match
) -> VariableTracker | None:
    """The result of a call that is stamped out of the entry; None if stamping failed, after undoing its nodes."""
    graph = tx.output.graph
    before, stamps = graph._root.prev, len(match.entry.call.stamps)
    try:
        result = stamp_out(tx, arguments, match)
    except Exception:
        while (node := graph._root.prev) is not before:
            tx.output.remove_node(node)
        del match.entry.call.stamps[stamps:]
        log.warning("%s: traced again: stamping it out failed", call.function, exc_info=True)
        return None
    cache.touch(match.entry)
    for recorder in RECORDERS.of(tx.output):
        recorder.adopt(*read_by(match))
    call.miss = None  # a miss of another variant of the arguments
    call.bodies = match.entry.call.bodies
    call.end(Outcome.REUSED, detail=f"stamped out of the call from {match.entry.call.caller}")
    return result
