"""What a call of a region returns, as metadata, without running its body.

Note [A body is run once to be traced]
Stock runs a body on fake tensors each time that it needs to know what a call returns: to collect the metadata of the
graph, and again after the body was traced. The answer is already known: Dynamo notes it when it records the body, and
the tracer when it traces the body. It holds for operands with the same metadata, in a state of the thread that does not
change what operators return. The results share no memory with the operands or each other. For a body that Dynamo has
cut out, this holds by construction (Note [What may cross the boundary] in graph_view.py); for a traced body it is
checked. A partitioned forward also returns those of its operands that are saved. In Inductor's passes its results are
then operands of the call or views of them, whereas stock's cache of fake operators would return views as fresh memory.

With ``torch._dynamo.config.verify_region_reuse`` the body is run all the same, and must return what was known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._dynamo.regions.renamed import all_renamed
from torch._guards import TracingContext
from torch._higher_order_ops.metadata_keys import alike, looks, renaming_of
from torch._higher_order_ops.region_autocast import WITHOUT_AUTOCAST, casting_parts
from torch._higher_order_ops.utils import FunctionalizeCtxWrapper
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch._subclasses.plain_fake import plain_fake
from torch.fx import Graph, GraphModule, Node
from torch.fx.offset_facts import sees_storage


# Key in the ``meta`` of a body that Dynamo has cut out of its graph, which returns fresh memory: the indices of the
# operands that it writes to.
OUTLINED = "region_outlined"
# The same for the operands of which it makes copies first, and which the frame's graph writes to behind the call.
COPIED = "region_copied"


def without_guards(mode: FakeTensorMode) -> contextlib.AbstractContextManager[Any]:
    """Within, no guards on sizes of fake tensors of ``mode`` are made: tracing the program has made all it needs."""
    return contextlib.nullcontext() if mode.shape_env is None else mode.shape_env.suppress_guards()


def region_cache() -> Any:
    """What the backend knows of the regions of the frame that is compiled; None outside of a compile."""
    context = TracingContext.try_get()
    return context.hop_dispatch_set_cache.get_cache(torch.ops.higher_order.invoke_subgraph) if context else None


def renamings() -> list[dict[Any, Any]]:
    """Symbols of bodies -> symbols that calls in the frame have in their place; see renaming.py of the outlining."""
    cache = region_cache()
    return [] if cache is None else cache.renamings


def has_calls(graph: Graph) -> bool:
    """Whether a graph calls regions."""
    return bool(graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph, sort=False))


def calls_with_bodies(gm: GraphModule, prefix: str = "") -> Iterator[tuple[Node, str, GraphModule]]:
    """The calls of regions in ``gm`` whose identifier begins with ``prefix``, with the body and its name in ``gm``."""
    for call in gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph):
        name = str(call.args[0].target)
        body = getattr(gm, name, None)
        if isinstance(body, GraphModule) and str(call.args[1]).startswith(prefix):
            yield call, name, body


def body_of(subgraph: Any) -> Any:
    return subgraph.subgraph if isinstance(subgraph, FunctionalizeCtxWrapper) else subgraph


def outlined(body: Any) -> bool:
    return isinstance(body, GraphModule) and OUTLINED in body.meta


def examples_of_results(body: GraphModule, name: str = "example_value") -> list[Any]:
    """The metadata ``name`` of what a body returns; None for a constant, or for a node without it."""
    return [node.meta.get(name) if isinstance(node, Node) else None for node in nodes_of_results(body)]


def nodes_of_results(body: GraphModule) -> tuple[Any, ...] | list[Any]:
    """What a body returns: nodes and constants."""
    (values,) = body.graph.output_node().args
    return values if isinstance(values, (tuple, list)) else (values,)


def known_results(
    subgraph: Any, operands: tuple[Any, ...], mode: FakeTensorMode | None = None, *, aliases: bool = False
) -> tuple[torch.Tensor | None, ...] | None:
    """Fake tensors like those that ``subgraph`` returns for ``operands``; None if that is not known.

    A result is None if the body returns None: the gradient of an operand that has none. The tensors are fresh and share
    no memory. With ``aliases``, a result may be an operand, or a view of an operand or of another result, as in the
    body.

    They belong to ``mode``, or to the fake mode under which this is called.
    """
    body = body_of(subgraph)
    if not isinstance(body, GraphModule) or _state_matters(body, operands):
        return None
    name = "example_value" if outlined(body) else "val"
    taken = body.graph.find_nodes(op="placeholder")
    inputs = [node.meta.get(name) for node in taken]
    symbols = renaming_of(inputs, operands, renamings())
    in_storage = symbols is not None or sees_storage(body)
    if not in_storage:
        symbols = renaming_of(inputs, operands, renamings(), in_storage=False)
    if symbols is None:
        return None
    every = examples_of_results(body, name)
    there = [index for index, value in enumerate(nodes_of_results(body)) if value is not None]
    outputs = [every[index] for index in there]
    if any(looks(value) is None for value in outputs):
        return None
    if name == "example_value" or not _share_memory(inputs, outputs):
        found: Sequence[Any] = fresh(outputs, mode, symbols)
    elif aliases and mode is not None and not symbols:
        nodes = nodes_of_results(body)
        found = _as_in_body(mode, dict(zip(taken, operands)), [nodes[index] for index in there])
    else:
        return None
    same = (alike(value, made, symbols, in_storage=in_storage) for value, made in zip(outputs, found))
    if len(found) != len(outputs) or not all(same):
        return None
    made: list[torch.Tensor | None] = [None] * len(every)
    for index, value in zip(there, found):
        made[index] = value
    _verify(subgraph, operands, made, mode)
    return tuple(made)


def _verify(subgraph: Any, operands: tuple[Any, ...], made: list[Any], mode: FakeTensorMode | None) -> None:
    from torch._dynamo.regions.options import verifying  # Dynamo imports this module

    if not verifying():
        return
    with mode or contextlib.nullcontext(), casting_parts(body_of(subgraph)):
        ran = subgraph(*operands)
    same = len(ran) == len(made) and all(r is m or alike(r, m) for r, m in zip(ran, made))
    if not same or _sharing(operands, ran) != _sharing(operands, made):
        raise AssertionError(f"a body returns {ran}, and it was known to return {made}")


def _state_matters(body: GraphModule, operands: tuple[Any, ...]) -> bool:
    """Whether an operator may return a different result here than when the body was recorded."""
    # A body that was cut out is called under the autocast under which it was recorded.
    if torch._C._is_any_autocast_enabled() and not (outlined(body) or WITHOUT_AUTOCAST in body.meta):
        return True
    above = not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)
    return above and any(isinstance(value, torch.Tensor) and value.requires_grad for value in operands)


def _storages(values: Iterable[Any]) -> list[int]:
    return [v.untyped_storage()._cdata for v in values if isinstance(v, torch.Tensor)]


def _sharing(operands: Iterable[Any], results: Iterable[Any]) -> list[int]:
    """For each tensor, the index of the first one that has the same memory."""
    storages = _storages((*operands, *results))
    return list(map(storages.index, storages))


def _share_memory(inputs: list[Any], outputs: list[Any]) -> bool:
    storages = _storages((*inputs, *outputs))
    own = storages[len(storages) - len(outputs) :]
    return any(storages.count(storage) > 1 for storage in own)


def on_storage(mode: FakeTensorMode, like: FakeTensor, owner: torch.Tensor | None, offset: Any) -> FakeTensor:
    """A fake tensor with the metadata of ``like`` on the storage of ``owner``, or on a new one.

    Call this where tensors of ``mode`` are meta tensors (``in_kernel_invocation_manager``).
    """
    size, stride = like.size(), like.stride()
    meta = torch.empty_strided(size, stride, dtype=like.dtype, device="meta")
    if owner is not None:
        meta.set_(owner.untyped_storage(), offset, size, stride)
    return plain_fake(mode, meta, like.fake_device)


def _as_in_body(mode: FakeTensorMode, stands_for: dict[Node, Any], results: list[Node]) -> list[Any]:
    """The values of a body's ``results`` if its inputs are replaced by ``stands_for``; empty if they are not known."""
    inputs = [node.meta.get("val") for node in stands_for]
    owned = _storages(inputs)
    if (
        mode.propagate_real_tensors
        or len(set(owned)) < len(owned)
        or not all(is_static(n.meta["val"]) for n in results)
    ):
        return []
    # storage in the body -> a tensor on the corresponding storage in this call, and how much further on values begin
    owners = {
        v.untyped_storage()._cdata: (stands_for[n], stands_for[n].storage_offset() - v.storage_offset())
        for n, v in zip(stands_for, inputs)
        if isinstance(v, torch.Tensor)
    }
    with in_kernel_invocation_manager(mode):
        for node in results:
            if node in stands_for:
                continue
            like = node.meta["val"]
            owner, moved = owners.get(like.untyped_storage()._cdata, (None, 0))
            stands_for[node] = on_storage(mode, like, owner, like.storage_offset() + moved)
            owners.setdefault(like.untyped_storage()._cdata, (stands_for[node], 0))
    return [stands_for[node] for node in results]


def is_static(value: torch.Tensor) -> bool:
    return not value._has_symbolic_sizes_strides or not any(
        isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride(), value.storage_offset())
    )


def fresh(values: list[Any], given: FakeTensorMode | None, symbols: dict[Any, Any]) -> tuple[torch.Tensor, ...]:
    """Fake tensors like ``values``, in memory of their own and with ``symbols`` renamed, of the mode ``given``.

    If ``given`` is None, they are of the mode under which this is called.
    """
    mode: Any = given or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    if not isinstance(mode, FakeTensorMode) or mode.propagate_real_tensors or not all(map(is_static, values)):
        with given or contextlib.nullcontext():
            return tuple(
                torch.empty_strided(
                    all_renamed(v.shape, symbols), all_renamed(v.stride(), symbols), dtype=v.dtype, device=v.device
                )
                for v in values
            )
    # Does what the mode would do for each, without dispatching.
    with in_kernel_invocation_manager(mode):
        under = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device="meta") for v in values]
    return tuple(plain_fake(mode, meta, v.device) for meta, v in zip(under, values))
