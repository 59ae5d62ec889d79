"""Overlay of torch._dynamo.variables.object_protocol: reports to region calls what the program hashes and stores."""

from __future__ import annotations

from typing import Any

from torch._dynamo.regions.trace.events import RECORDERS, TRACE_EVENTS, note_identity
from torch._dynamo.variables.constant import ConstantVariable

from torch_regions.overlay import replaces, stock


def _is_of_constants(obj: Any) -> bool:
    from torch._dynamo.variables.lists import TupleVariable  # imports this module

    known = obj.unwrap()
    if type(known) is TupleVariable:
        return all(map(_is_of_constants, known.items))
    return type(known) is ConstantVariable


@replaces
def generic_setitem(tx: Any, o: Any, key: Any, value: Any) -> Any:
    def store(at: Any) -> Any:
        return stock("torch._dynamo.variables.object_protocol:generic_setitem")(tx, o, at, value)

    recorders = RECORDERS.of(tx.output)
    return recorders[-1].deferred.store(tx, o, key, value, store) if recorders else store(key)


@replaces
def generic_hash(tx: Any, obj: Any) -> Any:
    """As stock: the hash as a number that the program gets. Dynamo makes no guard on what is hashed by identity."""
    found = stock("torch._dynamo.variables.object_protocol:generic_hash")(tx, obj)
    if TRACE_EVENTS and not _is_of_constants(obj):
        note_identity("hash")
    return found
