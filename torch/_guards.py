"""Overlay of torch._guards: the cache of traced regions.

A lookup finds entries by bucket (function and fingerprint of the arguments), then checks their condition. A function
keeps at most ``max_reuse_entries`` of them; one more evicts the least recently used.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch._guards import HopSubgraphCache

from torch_regions.overlay import replaces


if TYPE_CHECKING:
    from types import CodeType

    from torch.fx import GraphModule


log = logging.getLogger(__name__)


@replaces
@dataclass(eq=False)
class InvokeSubgraphReuseCondition:
    """When a traced call may be reused for another call whose arguments have the same fingerprint.

    Every field concerns sources behind an argument; source substitution replaces them by those of the other call.
    """

    # Sources of each leaf of the arguments: what source substitution replaces.
    leaf_sources: list[tuple[Any, ...]]
    # All sources behind an argument that tracing read, in order of reading. Their objects must correspond one to one to
    # those of the other call: without that, a body that was traced for two weights would be reused for tied ones.
    sources: list[Any]
    # What the guards at these sources check, and how to make them for another call. Without them, a body would be
    # reused for an attribute, type or constant other than the traced one.
    facts: list[Any]
    # Sources at which the frame had made all guards before the call, and that the call did not ask for. Without them, a
    # reuse would guard in each layer what the frame has read of one layer only.
    found_there: set[Any]
    # (source, own attributes, hooks...): state of an object that no guard checks. Without it, a hook, or an attribute
    # that shadows one of the class, would be overlooked.
    states: list[tuple[Any, Hashable]]
    # id -> source of the objects, read or known at a source behind no argument, that are the same in every call.
    # Without them, a body that was traced for two objects would be reused where an argument leads to the other one.
    unmoved: dict[int, Any]
    # id -> source by which Dynamo tracks the object. Without it, the frame would not know, after a reuse, which objects
    # the call read, and by which of their sources.
    tracked: dict[int, Any]
    # Sources whose object was also read at another source. Without them, a body that was traced for an argument that is
    # also behind another one would be reused for an argument that the frame computes.
    ties: set[Any]
    # (source, class, metadata...): tensors that tracing read, operands or not. Without them, a body would be reused for
    # a tensor of another shape that only a branch depends on.
    tensors: list[tuple[Any, Hashable]]
    # (tracker, state): tensors that are the same in every call. Without them, a body would be reused although the frame
    # has made one of them require grad.
    unmoved_tensors: list[tuple[Any, Hashable]]
    # (expression, key): values of the deferred constants that tracing read. Without them, a branch on a number among
    # the arguments would be taken as in the traced call.
    specialized: list[tuple[Any, Hashable]]
    # Elements found by a deferred index, in order. Without them, each call would use the traced call's element.
    paths: list[Any]
    # Lists and dicts of which the call touches single elements only (Touched). Without it, a store of another call to
    # another element would refuse reuse, or one to the same element be overlooked.
    touched: Any
    # source -> makers of guards, for numbers that were used as an index only and for opaque objects that operators take
    # whatever their value. These are guarded, but may differ between calls.
    indices: dict[Any, list[Any]]
    # Trackers of existing objects that the call read. Reuse is refused if the frame has changed one, because a guard
    # checks the object as it was when the frame began.
    read_objects: list[Any]
    # What the call read of the frame's pending changes (Pending). Without it, a body would be reused after the frame
    # has changed such an object again.
    pending: Any
    # Sources of arguments that the call also reached by another path. Without them, a body that reads a global would be
    # reused with another call's argument in place of that global.
    fixed: set[Any]
    # Dicts whose order of keys is guarded. Without them, the program would not recompile when the order in another
    # call's dict changes, and guards on its keys could not be made.
    ordered: list[Any]
    # (source, maker): guards on the numbers of the call's hooks, in dicts of the process. Without them, the program
    # would not recompile when such a dict comes to say more of another call's hook.
    of_hooks: list[Any]
    # What the call has guarded of its symbolic floats, in order. Without them, the program would not recompile when
    # another call's float changes in a way that the traced call's operators depend on.
    floats: list[Any]
    # What the call knows of the symbols of sizes that it was the first to read. Without it, a body would not be reused
    # for a tensor whose length is a symbol of its own.
    own_symbols: Any
    # The check plan of the above; the first lookup makes it.
    checks: Any = None


@replaces
@dataclass(eq=False)
class InvokeSubgraphReuseEntry:
    """One traced variant of a region, and how to stamp a call of it."""

    # The traced call, whose operators become the body.
    call: Any
    condition: InvokeSubgraphReuseCondition
    # The origin of each operand of the body, in order.
    inputs: list[Any]
    # Which operands are the same value, and which share a storage.
    sharing: Hashable
    # Indices of the body's values that the result is made of, values like these, and the recipe that makes the result.
    results: list[int]
    examples: list[Any]
    recipe: Any
    # The call's side effects, in order.
    effects: list[Any]
    # Indices of the operands to whose memory the body writes.
    writes: list[int]
    # The bucket includes the global state under which the call was traced.
    function: Any = None
    bucket: Hashable = None
    hits: int = field(default=0)
    # The same entry under other fingerprints: of calls with arguments that the program has read before.
    others: list[InvokeSubgraphReuseEntry] = field(default_factory=list)
    main: InvokeSubgraphReuseEntry | None = None


@replaces
class InvokeSubgraphCache(HopSubgraphCache):
    """What is known of regions while one frame is compiled.

    The backend uses the caches keyed by a body's identifier; Dynamo uses the buckets of entries for reuse.
    """

    def __init__(self) -> None:
        # identifier -> callables that the autograd key and the proxy mode made of the body
        self.autograd_cache: dict[str, Callable[..., Any]] = {}
        self.proxy_dispatch_cache: dict[str, Callable[..., Any]] = {}
        # body, metadata of its operands and state of the tracer -> its schema (see region_schema.py)
        self.schemas: dict[object, Any] = {}
        # (body, layouts of its operands) -> the body of local tensors (see region_dtensors.py)
        self.local_bodies: dict[object, GraphModule] = {}
        # layouts of a call's gradients -> their number in order of tracing
        self.layouts_of_gradients: dict[object, int] = {}
        # identifier -> metadata of the tangents -> (backward, its number in order of tracing)
        self.lazy_bwd_cache: dict[str, dict[Hashable, tuple[GraphModule, int]]] = {}
        # Of the call whose backward is asked for: metadata of its tangents without their storage offsets, or None.
        self.tangents_anywhere: Hashable = None
        # identifier -> kinds of effects in the body
        self.effects_cache: dict[str, set[Any]] = {}
        # Of each call with other symbols than its body: symbol of the body -> symbol of the call (see renaming.py).
        self.renamings: list[dict[Any, Any]] = []
        # code of a function -> names of its bodies
        self.dynamo_installed_submodules: dict[CodeType, list[str]] = {}
        # (function, fingerprint) -> entries, latest use first
        self.buckets: dict[Hashable, list[InvokeSubgraphReuseEntry]] = {}
        # function -> its entries, least recently used first
        self.by_function: dict[Any, OrderedDict[int, InvokeSubgraphReuseEntry]] = {}

    def add_dynamo_installed_submodule(self, fn_code: CodeType, identifier: str) -> None:
        self.dynamo_installed_submodules.setdefault(fn_code, []).append(identifier)

    def get_dynamo_installed_submodules(self, fn_code: CodeType) -> list[str]:
        return self.dynamo_installed_submodules.get(fn_code, [])

    def add_autograd_key_entry(self, identifier: str, key: Callable[..., Any]) -> None:
        self.autograd_cache[identifier] = key

    def get_autograd_key_entry(self, identifier: str) -> Callable[..., Any] | None:
        return self.autograd_cache.get(identifier)

    def add_proxy_dispatch_entry(self, identifier: str, key: Callable[..., Any]) -> None:
        from torch._higher_order_ops.region_autocast import note_traced

        note_traced(key)
        self.proxy_dispatch_cache[identifier] = key

    def get_proxy_dispatch_entry(self, identifier: str) -> Callable[..., Any] | None:
        return self.proxy_dispatch_cache.get(identifier)

    def add_functionalize_schema_entry(self, key: object, schema: Any) -> None:
        # Functionalization's own key has only the types of the operands. Two calls with different strides would share a
        # schema, although a reshape that is written to is a view of the operand in one call and a copy in the other.
        pass

    def get_functionalize_schema_entry(self, key: object) -> Any:
        return None

    def add_lazy_bwd_entry(self, identifier: str, tangent_metadata: tuple[object], gmod: GraphModule) -> int:
        from torch.fx.offset_facts import sees_storage

        known = self.lazy_bwd_cache.setdefault(identifier, {})
        number = len(known)
        # See Note [A body does not see storage offsets] in torch/fx/offset_facts.py.
        anywhere = None if sees_storage(gmod) else self.tangents_anywhere
        known[anywhere or tangent_metadata] = (gmod, number)
        return number

    def get_lazy_bwd_entry(
        self, identifier: str, tangent_metadata: tuple[object]
    ) -> tuple[GraphModule, int] | tuple[None, None]:
        known = self.lazy_bwd_cache.get(identifier, {})
        return known.get(self.tangents_anywhere) or known.get(tangent_metadata) or (None, None)

    def add_effects(self, identifier: str, effects: set[Any]) -> None:
        known = self.effects_cache.setdefault(identifier, effects)
        if known != effects:
            raise AssertionError(f"region {identifier} had the effects {known}, and has {effects} in another call")

    def get_effects(self, identifier: str) -> set[Any] | None:
        return self.effects_cache.get(identifier)

    def find(self, bucket: Hashable) -> list[InvokeSubgraphReuseEntry]:
        """Entries of calls with this fingerprint, latest use first."""
        return list(self.buckets.get(bucket, ()))

    def buckets_of(self, function: Any) -> list[Any]:
        """Fingerprints of the entries of ``function``, latest use first."""
        entries = reversed(self.by_function.get(function, {}).values())
        return [each.bucket for entry in entries for each in (entry, *entry.others)]

    def knows(self, function: Any) -> bool:
        """Whether ``function`` has an entry."""
        return bool(self.by_function.get(function))

    def add(self, entry: InvokeSubgraphReuseEntry, max_reuse_entries: int) -> None:
        """Adds an entry; if its function has more than ``max_reuse_entries``, drops the least recently used."""
        own = self.by_function.setdefault(entry.function, OrderedDict())
        own[id(entry)] = entry
        for each in (entry, *entry.others):
            self.buckets.setdefault(each.bucket, []).insert(0, each)
        while len(own) > max(max_reuse_entries, 0):
            _, old = own.popitem(last=False)
            for each in (old, *old.others):
                self.buckets[each.bucket].remove(each)
                each.main = None
            log.info(
                "region %s: more than %d variants, the least recently used is dropped (%d calls reused it);"
                " see max_reuse_entries of nested_compile_region",
                entry.function,
                max_reuse_entries,
                old.hits,
            )

    def forget_calls(self) -> None:
        """Drops all entries, after the last call of the frame; those under other fingerprints refer to each other."""
        for entries in self.buckets.values():
            for entry in entries:
                entry.main = None
        self.buckets.clear()
        self.by_function.clear()

    def touch(self, entry: InvokeSubgraphReuseEntry) -> None:
        """Notes a use of ``entry``."""
        main = entry.main or entry
        main.hits += 1
        self.by_function[main.function].move_to_end(id(main))
        bucket = self.buckets[entry.bucket]
        bucket.remove(entry)
        bucket.insert(0, entry)
