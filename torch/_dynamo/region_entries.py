"""One call of a region: stamped out of an earlier one where that is right, traced otherwise.

1. fingerprint  structure and metadata of the arguments       region_arguments.py
2. find         an entry whose read set holds here            region_reuse.py
3. stamp out    one call node, the guards, the result         region_stamps.py, region_results.py
or
2. trace        flat, under an observer                       region_calls.py, region_reads.py
3. save         an entry, or why there can be none            region_reuse.py

With ``torch._dynamo.config.verify_region_reuse`` a call that could be stamped out is traced instead,
and everything that the entry foretold is compared with what came of it (region_verify.py).
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from torch._dynamo.variables.misc import CellVariable, NewGlobalVariable
from torch.fx import traceback

import torch
from torch._dynamo.region_arguments import Arguments, CannotReuse
from torch._dynamo.region_calls import RegionCall
from torch._dynamo.region_identity import global_state_key
from torch._dynamo.region_options import verifying
from torch._dynamo.region_outcomes import Outcome, ReuseMissReason
from torch._dynamo.region_reads import Observer
from torch._dynamo.region_reuse import Match, find, save
from torch._dynamo.region_stamps import stamp_out
from torch._dynamo.region_verify import verify


if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker


log = logging.getLogger(__name__)


def call_region(
    tx: InstructionTranslatorBase,
    call: RegionCall,
    fn: VariableTracker,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
    limit: int,
) -> VariableTracker:
    """The result of calling ``fn``; ``limit`` entries of it are kept at most."""
    calls = tx.output.region_tracker.calls

    def trace() -> VariableTracker:
        return calls.trace(tx, call, lambda: fn.call_function(tx, args, kwargs))

    if len(tx.output.tracers) > 1:
        call.miss = CannotReuse(ReuseMissReason.INSIDE_HIGHER_ORDER_OP)
        return trace()
    if torch._C._functorch.peek_interpreter_stack() is not None:
        call.miss = CannotReuse(ReuseMissReason.INSIDE_TRANSFORM)
        return trace()
    try:
        arguments = Arguments(tx, fn, args, kwargs)
    except CannotReuse as e:
        call.miss = e
        return trace()
    state = (global_state_key(), _symbolic_state(tx))
    function = arguments.function
    bucket = (function, arguments.key, state)
    cache: Any = tx.output.tracing_context.hop_dispatch_set_cache.get_cache(torch._higher_order_ops.invoke_subgraph)
    match = _find(tx, call, arguments, cache, bucket)
    if match is not None and not verifying():
        result = _reuse(tx, call, arguments, cache, match)
        if result is not None:
            return result
    with Observer(tx) as observer:
        result = trace()
    try:
        if call.graph is None:
            return result  # rolled back, or in another graph
        if (global_state_key(), _symbolic_state(tx)) != state:
            raise CannotReuse(ReuseMissReason.CHANGES_GLOBAL_STATE)
        entry = save(tx, arguments, observer, call, result)
    except CannotReuse as e:
        if match is not None:
            verify(tx, match, None, e)
        call.miss = e
        return result
    except Exception:
        if verifying():
            raise
        log.warning("%s: not kept for reuse: reading what it depends on failed", call.function, exc_info=True)
        return result
    if match is not None:
        verify(tx, match, entry, None)
        return result
    entry.function, entry.bucket = function, bucket
    cache.add(entry, limit)
    return result


def _symbolic_state(tx: InstructionTranslatorBase) -> Hashable:
    """Global state that Dynamo holds for the program while it traces."""
    modes = tx.symbolic_torch_function_state
    return (
        # Who intercepts operators: the modes that the program has entered, and whether they and subclasses are heard.
        tuple(modes.mode_stack),
        modes.torch_function_mode_enabled,
        modes.torch_function_subclass_enabled,
        # What a bare ``raise`` or sys.exc_info() finds.
        tuple(tx.exn_vt_stack[i] for i in range(len(tx.exn_vt_stack))),
        # Globals and cells that the program has bound anew so far: another binding, another function.
        frozenset(
            (tracker, name, value)
            for tracker, stored in tx.output.side_effects.store_attr_mutations.items()
            if isinstance(tracker, (NewGlobalVariable, CellVariable)) and tracker.source is not None
            for name, value in stored.items()
        ),
        # Annotations that operators are recorded with.
        repr(traceback.current_meta.get("custom")),
    )


def _find(
    tx: InstructionTranslatorBase, call: RegionCall, arguments: Arguments, cache: Any, bucket: Any
) -> Match | None:
    if not cache.knows(arguments.function):
        return None
    try:
        found = find(tx, arguments, [e for e in cache.find(bucket) if e.call.graph is tx.output.graph])
    except Exception:
        if verifying():
            raise
        log.warning("%s: traced again: looking for an earlier call failed", call.function, exc_info=True)
        return None
    if isinstance(found, CannotReuse):
        call.miss = found
        return None
    return found


def _reuse(
    tx: InstructionTranslatorBase, call: RegionCall, arguments: Arguments, cache: Any, match: Match
) -> VariableTracker | None:
    """The result of a call that is stamped out of the entry found; None when that failed, and left nothing."""
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
    for observer in tx.output.region_tracker.calls.observers:
        observer.met_by_reuse(match)
    call.end(Outcome.REUSED, detail=f"stamped out of the call from {match.entry.call.caller}")
    return result
