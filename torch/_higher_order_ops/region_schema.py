"""The schema of a region, generated once for all calls that it cannot distinguish.

Note [What a schema can depend on]
Stock finds out which operands a region writes to by tracing its body, for each call: in the autograd dispatch and again
in functionalization, which is half of the time that a marked training step takes to compile. The trace does not run on
the operands but on tensors made from their metadata (`torch._higher_order_ops.utils._from_fun`), so it depends on
nothing else of an operand. Two calls of one body have one schema if they agree on that metadata, and on the state of
the thread that decides what an operator does while it is traced. In particular, the trace does not depend on whether
operands share memory, nor on their storage offset, so these are not part of the key.

Symbolic sizes are compared as expressions. A schema is kept for one compile only, and there an expression stands for
one number; equal expressions take equal branches.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Hashable
from typing import Any

import torch
from torch._higher_order_ops.metadata_keys import number
from torch._higher_order_ops.region_metadata import (
    OUTLINED,
    body_of,
    examples_of_results,
    outlined,
    region_cache,
)
from torch._higher_order_ops.schema import HopSchemaGenerator
from torch._higher_order_ops.utils import check_input_alias_and_mutation_return_outputs
from torch._ops import OpOverload
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


_AUTOCAST = ("cpu", "cuda", "xpu", "mps")


def _operand(value: Any) -> Hashable:
    """The metadata of an operand that the trace may depend on; None if that is not known."""
    if value is None:
        return ("none",)
    if isinstance(value, torch.Tensor):
        if is_traceable_wrapper_subclass(value) or value.layout is not torch.strided:
            return None
        return (
            # Without any of these, a body that branches on it would get the schema of the other branch.
            tuple(map(number, value.shape)),
            # A reshape that is written to is a view of the operand or, with other strides, a copy.
            tuple(map(number, value.stride())),
            value.dtype,
            value.device,
            value.requires_grad,
            # The trace does not depend on it, but the schema names the types of its arguments.
            type(value),
        )
    if isinstance(value, (int, torch.SymInt)):
        # A number is a constant in the trace, and a body may branch on it.
        return (type(value), number(value))
    return None  # generators, script objects: they have a state


def _state() -> tuple[Hashable, Any]:
    """The state that decides how an operator is traced, and an object to keep alive while its id is in use."""
    from torch.fx.experimental.proxy_tensor import _CURRENT_MAKE_FX_TRACER

    table = _CURRENT_MAKE_FX_TRACER.decomposition_table if _CURRENT_MAKE_FX_TRACER is not None else None
    key = (
        # Some operators are decomposed before autograd in one mode, but not in the other.
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        # The trace runs under the caller's dispatch keys. With functionalization or autograd, other kernels run.
        torch._C._dispatch_tls_local_include_set().raw_repr(),
        torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        # Autocast inserts copies between operands and operators.
        tuple((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _AUTOCAST),
        # Which operators the tracer decomposes.
        id(table),
    )
    return key, table


def _schema(body: torch.fx.GraphModule, operands: tuple[Any, ...], written: Container[int], results: Any) -> Any:
    """The schema of a call: the types of its operands and results, and the indices of the operands it writes to."""
    schema = HopSchemaGenerator(torch.ops.higher_order.invoke_subgraph)
    schema.add_arg("subgraph", body)
    schema.add_arg("identifier", "")
    for index, operand in enumerate(operands):
        schema.add_arg(f"arg{index}", operand, is_mutated=index in written)
    for example in results:
        schema.add_output(example)
    return schema.gen_schema()


def _is_traced(body: torch.fx.GraphModule, seen: list[Any]) -> bool:
    """Whether make_fx has traced ``body`` for operands with the metadata ``seen``, and met nothing but operators."""
    taken: list[Any] = []
    for node in body.graph.nodes:
        if node.op == "placeholder":
            taken.append(_operand(node.meta.get("val")))
        elif node.op != "output":
            if node.target is operator.getitem and not node.users:
                continue  # It has no value if the operator was not asked for that gradient, of a bias which is None.
            known = isinstance(node.target, OpOverload) or node.target is operator.getitem
            if node.op != "call_function" or not known or "val" not in node.meta:
                return False
    # Its inputs need not be those of the call in class, nor in whether autograd records them.
    return None not in taken and [each[:4] for each in taken] == [each[:4] for each in seen]


def remembered_schema(subgraph: Any, operands: tuple[Any, ...], generate: Callable[[], Any]) -> Any:
    """The schema of a call, reused from an earlier call with the same key; see Note [What a schema can depend on]."""
    cache, body = region_cache(), body_of(subgraph)
    if cache is not None and outlined(body):
        types = (body, *map(type, operands))
        if types not in cache.schemas:
            cache.schemas[types] = _schema(body, operands, body.meta[OUTLINED], examples_of_results(body)), None
        return cache.schemas[types][0]
    seen = [_operand(value) for value in operands]
    if cache is None or not isinstance(body, torch.fx.GraphModule) or None in seen:
        return generate()
    state, keep_alive = _state()
    # The body's graph and its size, because a pass may have replaced or changed the graph.
    key = (body, body.graph, len(body.graph.nodes), type(subgraph), tuple(seen), state)
    if key not in cache.schemas:
        if _is_traced(body, seen):
            # Stock traces it anew, and asks the new graph the same.
            *_, written, results = check_input_alias_and_mutation_return_outputs(body)
            made = _schema(body, operands, written, results)
        else:
            made = generate()
        cache.schemas[key] = made, keep_alive
    return cache.schemas[key][0]
