"""Overlay of torch._functorch._aot_autograd.autograd_cache: equal keys for graphs of equal meaning.

Stock makes its key from the code printed for the graph, so every name counts, and it renames, recompiles and renames
back the graph. This key is made from the graph's structure, without changing the graph.
"""

from __future__ import annotations

import contextlib
import logging
import types
import uuid
from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.autograd_cache import (
    AOTAutogradCache,
    AOTAutogradCacheDetails,
    AOTAutogradCachePickler,
    BypassAOTAutogradCache,
    check_cacheable,
    create_fx_config,
    log,
)
from torch._functorch._aot_autograd.autograd_cache_misses import MAX_REMEMBERED, Summary, explain, save, tell
from torch._functorch._aot_autograd.autograd_cache_parts import KeyParts, key_parts
from torch._functorch._aot_autograd.canonical_graph import CanonicalGraph, UnkeyableGraph
from torch._functorch._aot_autograd.canonical_inputs import SymbolNames
from torch._inductor.codecache import AOTAUTOGRAD_CACHE_PREFIX, FxGraphCache, sha256_hash

from torch_regions.overlay import replaces, stock


_MODULE = "torch._functorch._aot_autograd.autograd_cache"
_ABSENT = object()
# Fields that Dynamo leaves on a graph module; code below Dynamo must not read them while a key is made.
_HIDDEN_FIELDS = ("meta", "compile_subgraph_reason", "_param_name_to_source", "_backend_id")


# The key being looked up, and missed keys until their entry is saved.
_asked: dict[str, KeyParts] = {}
_missed: dict[str, Summary] = {}


class CanonicalPickler(AOTAutogradCachePickler):
    """Stock's pickler, except that symbolic numbers are written with the names that ``symbols`` gives them."""

    def __init__(self, gm: torch.fx.GraphModule, symbols: SymbolNames) -> None:
        super().__init__(gm)
        self._symbols = symbols
        kinds = (torch.SymInt, torch.SymBool, torch.SymFloat)
        self.dispatch_table = {**self.dispatch_table, **dict.fromkeys(kinds, self._reduce_symbolic)}

    def _reduce_symbolic(self, number: Any) -> Any:
        return (str, (type(number).__name__, self._symbols.text(number)))


@replaces
def autograd_cache_key(
    mod: torch.fx.GraphModule | torch._dynamo.utils.GmWrapper,
    example_inputs: Sequence[Any],
    config: Any,
    compiler_config_extra: Any = None,
    act_input_paths: Sequence[Any] = (),
) -> tuple[str, list[str]]:
    """A key that two graphs share if and only if they mean the same, whatever their names are.

    Raises ``BypassAOTAutogradCache`` for a graph that is not cached; under ``bypass_autograd_cache_key`` such a graph
    gets a random key. ``autograd_cache_normalize_inputs = False`` gives stock's key.
    """
    more = (act_input_paths,) if act_input_paths else ()  # 2.13 has no such parameter
    gm = mod.gm if isinstance(mod, torch._dynamo.utils.GmWrapper) else mod
    if not functorch_config.autograd_cache_normalize_inputs or not isinstance(gm, torch.fx.GraphModule):
        return stock(f"{_MODULE}:autograd_cache_key")(mod, example_inputs, config, compiler_config_extra, *more)
    try:
        parts = parts_of_key(gm, example_inputs, config, compiler_config_extra, *more)
    except Exception as error:
        tell("bypass", str(error).splitlines()[0] if str(error) else type(error).__name__)
        if functorch_config.bypass_autograd_cache_key:
            log.info("no AOTAutograd cache key for this graph, a random one instead", exc_info=True)
            return uuid.uuid4().hex, []
        raise
    key = AOTAUTOGRAD_CACHE_PREFIX + sha256_hash(parts.text().encode())
    _asked.clear()
    _asked[key] = parts
    if not log.isEnabledFor(logging.DEBUG):
        return key, []
    lines = [f"[{digest}] {name}" for name, digest in parts.digests.items()]
    log.debug("parts of the AOTAutograd cache key %s:\n%s", key, "\n".join(lines))
    return key, lines


def parts_of_key(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], config: Any, compiler_config_extra: Any, *more: Any
) -> KeyParts:
    """The parts of a graph's key. Raises ``BypassAOTAutogradCache`` if the graph is not cached."""
    from torch._functorch._aot_autograd.autograd_cache import _check_triton_cache_version

    _check_triton_cache_version()
    details = AOTAutogradCacheDetails(gm, example_inputs, config, create_fx_config(compiler_config_extra), *more)
    symbols = SymbolNames(example_inputs, FxGraphCache._get_shape_env())
    pickler = CanonicalPickler(gm, symbols)
    try:
        graph = CanonicalGraph(gm, pickler.dumps)
        _check_calls(graph)
        graph.let_go()
        specialization = gm.meta.get("specialization")
        return key_parts(graph, example_inputs, config, details, pickler.dumps, symbols, specialization)
    except UnkeyableGraph as reason:
        raise BypassAOTAutogradCache(str(reason)) from reason


def _check_calls(graph: CanonicalGraph) -> None:
    """Stock's check of nodes, for one call of each function, in bodies too.

    Stock checks the outer graph only, but an artifact also contains what bodies call.
    """
    nodes = types.SimpleNamespace(nodes=graph.examples.values())
    check_cacheable(types.SimpleNamespace(graph=nodes))  # type: ignore[arg-type]


@replaces("AOTAutogradCache._lookup")
@staticmethod
def _lookup(
    key: str, local: bool, remote: bool, args: list[Any], cache_info: dict[str, Any], aot_config: Any
) -> tuple[Any, bytes] | None:
    """The entry of a key. On a miss, reports the reason in the log and to the report."""
    found = stock(f"{_MODULE}:AOTAutogradCache._lookup")(key, local, remote, args, cache_info, aot_config)
    parts = _asked.pop(key, None)
    if found is not None or parts is None:
        return found
    if guards := cache_info.get("cache_status_guard_expr"):
        why = tell("miss", f"an entry of this key is for other sizes: {guards}")
    else:
        # Entries of other processes are read only if a log wants the difference.
        folder = AOTAutogradCache._get_tmp_dir() if local and log.isEnabledFor(logging.INFO) else None
        _missed[key], why = explain(key, parts, folder)
        if len(_missed) > MAX_REMEMBERED:  # never saved
            _missed.pop(next(iter(_missed)))
        tell("miss", why)
    log.info("AOTAutograd cache miss for key %s: %s", key, why)
    return None


@replaces("AOTAutogradCache._write_to_local_cache")
@staticmethod
def _write_to_local_cache(key: str, content: bytes) -> None:
    """Writes an entry, and beside it the digests that another process compares on a miss."""
    stock(f"{_MODULE}:AOTAutogradCache._write_to_local_cache")(key, content)
    if (summary := _missed.pop(key, None)) is not None:
        save(summary, AOTAutogradCache._get_tmp_dir_for_key(key))


@replaces
@contextlib.contextmanager
def sanitize_gm_for_cache(gm: torch.fx.GraphModule) -> Generator[None, None, None]:
    """Hides Dynamo's fields of a graph module while a key is made, then restores them."""
    from torch._functorch._aot_autograd.autograd_cache import normalize_placeholder_names

    if not functorch_config.autograd_cache_normalize_inputs:
        with stock(f"{_MODULE}:sanitize_gm_for_cache")(gm):
            yield
        return
    kept = {name: getattr(gm, name, _ABSENT) for name in _HIDDEN_FIELDS}
    try:
        for name in _HIDDEN_FIELDS:
            setattr(gm, name, {} if name == "meta" else None)
        with normalize_placeholder_names(gm):
            yield
    finally:
        for name, value in kept.items():
            if value is _ABSENT:
                delattr(gm, name)
            else:
                setattr(gm, name, value)


@replaces
@contextlib.contextmanager
def normalize_placeholder_names(gm: torch.fx.GraphModule) -> Generator[None, None, None]:
    """Inside, placeholders are named p_0, p_1, ...; those of symbolic sizes keep their names.

    Afterwards names, namespace and code are as before, even if an exception is raised inside. Keys are made without it:
    it serves callers that print the graph.
    """
    if not functorch_config.autograd_cache_normalize_inputs or not hasattr(gm, "graph"):
        yield
        return
    namespace = gm.graph._graph_namespace
    used, counts, names = set(namespace._used_names), dict(namespace._base_count), dict(namespace._obj_to_name)
    renamed = []
    try:
        for node in gm.graph.find_nodes(op="placeholder", sort=True):
            if node.type != torch.SymInt:
                renamed.append((node, node.name, node.target))
                node.target = f"p_{len(renamed) - 1}"
                node._rename(node.target)
        gm.recompile()
        yield
    finally:
        for node, name, target in renamed:
            node.name, node.target = name, target
        namespace._used_names, namespace._base_count, namespace._obj_to_name = used, counts, names
        gm.recompile()
