"""Records a call of a region in a graph that is being traced, if the body was traced before.

Note [A call is recorded from what is known of its body]
For each call after the first, stock looks up the traced body, and then computes what the call returns as for any other
operator: a dispatch to the fake mode, which hashes the metadata of all operands; two detached copies of each result,
each with a dispatch; and a copy of each operand, which records its eager strides for Inductor. That is most of the cost
of a call in AOTAutograd's tracing, and all of it is known (``region_metadata.known_results``). So this file makes the
call, its results and their examples directly, if the results are fresh tensors of static sizes and the body was traced
for the operands. The example of an operand is the one noted where the operand was made. Any other call is left to
stock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._higher_order_ops.region_metadata import body_of, is_static, known_results, nodes_of_results, region_cache
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch._subclasses.plain_fake import plain_fake
from torch.fx import GraphModule, Tracer
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, _ProxyTensor, extract_val, set_proxy_slot
from torch.fx.passes.shape_prop import _extract_tensor_metadata


def record_call(
    proxy_mode: ProxyTorchDispatchMode, subgraph: Any, identifier: Any, operands: tuple[Any, ...], call_id: int | None
) -> tuple[torch.Tensor | None, ...] | None:
    """The results of a call that was recorded in the graph; None if nothing was recorded.

    ``call_id``: stock's annotation that distinguishes the calls of one body.
    """
    cache = region_cache()
    body: Any = cache.get_proxy_dispatch_entry(identifier) if cache else None
    mode: Any = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    tracer: Any = proxy_mode.tracer
    if not isinstance(body, GraphModule) or not _usual(tracer, mode, body, operands):
        return None
    results = known_results(body, operands)
    if results is None or not all(r is None or (type(r) is FakeTensor and is_static(r)) for r in results):
        return None
    call = _call(tracer, body, identifier, operands)
    _annotate(call.node, call_id, body, body_of(subgraph))
    _track(tracer, mode, call, results, nodes_of_results(body))
    return results


def _call(tracer: Any, body: GraphModule, identifier: Any, operands: tuple[Any, ...]) -> torch.fx.Proxy:
    create, proxies = tracer.create_proxy, [tracer.unwrap_proxy(value) for value in operands]
    target = torch.ops.higher_order.invoke_subgraph
    if not all(isinstance(value, torch.fx.Proxy) for value in proxies):
        return create("call_function", target, (body, identifier, *proxies), {})  # type: ignore[no-any-return]
    call: torch.fx.Proxy = create("call_function", target, (body, identifier), {})
    node, nodes = call.node, [proxy.node for proxy in proxies]
    node.args = (*node.args, *nodes)
    noted = map(_noted, nodes, operands)
    node.meta["eager_input_vals"] = ((None, None, *noted), {})
    return call


def _noted(node: torch.fx.Node, value: FakeTensor) -> Any:
    """What stock notes of an operand: a copy that does not change if the operand's metadata does later."""
    val = node.meta.get("val")
    same = type(val) is FakeTensor and val.shape == value.shape and val.stride() == value.stride()
    return val if same else extract_val(value)


def _usual(tracer: Any, mode: Any, body: GraphModule, operands: tuple[Any, ...]) -> bool:
    return (
        isinstance(mode, FakeTensorMode)
        and not mode.propagate_real_tensors
        and isinstance(tracer, Tracer)
        and all(type(value) is FakeTensor and value.fake_mode is mode for value in operands)
        and any(body is module for module in tracer.root.modules())
    )


def _annotate(node: torch.fx.Node, call_id: int | None, *bodies: Any) -> None:
    """Adds what the partitioner, and the compilers of single regions, read at a call."""
    found = {}
    for body in bodies:
        if isinstance(body, GraphModule) and body.meta.get("nested_region_config") is not None:
            found["nested_region_config"] = body.meta["nested_region_config"]
            break
    if call_id is not None:
        found["call_id"] = call_id
    if found:
        node.meta.setdefault("custom", {}).update(found)


def _is_of(known: Any, example: torch.Tensor) -> bool:
    """Whether ``known`` is the metadata of ``example``, and not of the body's result before it was changed."""
    if known is None:
        return False
    now = (example.shape, example.stride(), example.dtype, example.requires_grad)
    return (known.shape, known.stride, known.dtype, known.requires_grad) == now  # type: ignore[no-any-return]


def _track(tracer: Any, mode: FakeTensorMode, call: Any, results: Sequence[Any], made_of: Sequence[Any]) -> None:
    """Notes the results of ``call``, with the metadata of the body's values ``made_of``."""
    # The examples share the memory of the results, but do not change when the metadata of the results does.
    with no_python_dispatcher(), in_kernel_invocation_manager(mode):
        under = [None if result is None else torch.ops.aten.detach.default(result) for result in results]
    examples: list[torch.Tensor | None] = [None] * len(results)
    for index, (result, meta) in enumerate(zip(results, under)):
        item = call[index]
        if meta is None:
            continue
        example = examples[index] = plain_fake(mode, meta, result.fake_device)
        set_proxy_slot(result, tracer, _ProxyTensor(item, None))
        item.node.meta["val"] = example
        known = made_of[index].meta.get("tensor_meta")
        item.node.meta["tensor_meta"] = known if _is_of(known, example) else _extract_tensor_metadata(example)
    call.node.meta["val"] = tuple(examples)
