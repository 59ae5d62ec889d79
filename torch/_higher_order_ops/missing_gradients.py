"""The backward of a call of which some results have no gradient.

Note [A result without a gradient]
A result of a call may require grad, and yet get no gradient: its reader takes the shape of it only (``expand_as``), or
is an ``autograd.Function`` or a custom operator whose backward returns None for it. In the flat graph, the operators
that lead to the result then take no part in the backward. Stock gives the backward of a call zeros instead, and zero
times infinity is not zero. What a reader's backward returns is known only when it has run, that is, when the backward
of the call is traced.

So here autograd passes None for such a result, and the body's backward is traced as if the result did not require grad.
A body gets one backward for each set of results without a gradient. Each has a name of its own, because gradients of
other results may have the same metadata.

A gradient may also come with the conj or neg bit (the result's reader is ``conj``). No call can be dispatched on such a
tensor, so the bit is resolved.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._higher_order_ops.metadata_keys import key_of_tangents
from torch._higher_order_ops.region_dtensors import LAYOUTS, name_for_gradients
from torch._higher_order_ops.region_metadata import region_cache
from torch.fx import GraphModule


# Between the name of a body and the indices of its results without a gradient.
_WITHOUT = "_without_gradients_of_"


def name_of_forward(name: str) -> str:
    """The name of the body whose backward is traced under ``name``."""
    return name.partition(_WITHOUT)[0].partition(LAYOUTS)[0]


def gradients(ctx: Any, of_results: Sequence[Any], stock_backward: Callable[..., Any]) -> Any:
    """The gradients of a call's operands, with ``stock_backward``, if autograd passes None for missing ones."""
    of_results = tuple(map(_resolved, of_results))
    layouts = name_for_gradients(of_results)
    metadata = ctx._output_metadata
    ignored = ctx._non_differentiable_indices
    none = [i for i, gradient in enumerate(of_results) if gradient is None and i not in metadata.indexes_with_symint]
    missing = [i for i in none if i not in ignored and i not in metadata.indexes_with_no_grad]
    if not none and not layouts:
        return _anywhere(ctx, of_results, stock_backward)
    if len(none) + len(metadata.indexes_with_symint) == len(of_results):
        return (None,) * len(ctx.needs_input_grad)
    before = ctx._subgraph, ctx._identifier, ignored
    try:
        ctx._non_differentiable_indices = sorted({*ignored, *none})
        if missing:
            ctx._subgraph = _without(ctx._subgraph, missing)
            ctx._identifier += _WITHOUT + "_".join(map(str, missing))
        ctx._identifier += layouts
        return _anywhere(ctx, of_results, stock_backward)
    finally:
        ctx._subgraph, ctx._identifier, ctx._non_differentiable_indices = before


def _anywhere(ctx: Any, of_results: Sequence[Any], stock_backward: Callable[..., Any]) -> Any:
    """``stock_backward``, with a backward that may have been traced for tangents elsewhere in their storages."""
    cache = region_cache()
    if cache is None:
        return stock_backward(ctx, *of_results)
    before, cache.tangents_anywhere = cache.tangents_anywhere, key_of_tangents(of_results)
    try:
        return stock_backward(ctx, *of_results)
    finally:
        cache.tangents_anywhere = before


def _resolved(gradient: Any) -> Any:
    return gradient.resolve_conj().resolve_neg() if isinstance(gradient, torch.Tensor) else gradient


def _without(subgraph: Any, indices: list[int]) -> Any:
    """A body like ``subgraph`` whose results at ``indices`` do not require grad."""
    if not isinstance(subgraph, GraphModule):
        return lambda *operands: _detached(subgraph(*operands), indices)
    graph = copy.deepcopy(subgraph.graph)
    output = graph.output_node()
    (results,) = output.args
    with graph.inserting_before(output):
        detached = {i: graph.call_function(torch.ops.aten.detach.default, (results[i],)) for i in indices}  # type: ignore[index]
    output.args = (tuple(detached.get(i, result) for i, result in enumerate(results)),)  # type: ignore[arg-type]
    made = GraphModule(subgraph, graph)
    made.meta = dict(subgraph.meta)
    return made


def _detached(results: Sequence[Any], indices: list[int]) -> tuple[Any, ...]:
    return tuple(result.detach() if i in indices else result for i, result in enumerate(results))
