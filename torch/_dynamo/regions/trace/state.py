"""State of tensors, captures and functions that tracing may read without a guard."""

from __future__ import annotations

import operator
import types
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch._dynamo.regions.keys import Unkeyable, constant_key, data_symbols, hidden_key, object_key, tensor_key
from torch._dynamo.regions.outcomes import CannotReuse, ReuseMissReason
from torch._dynamo.regions.renamed import SYMBOLIC
from torch._dynamo.regions.trace.objects import RunsCode, has_own_dict, of_class
from torch._dynamo.regions.trace.substitution import Resolver
from torch._dynamo.regions.trace.unguarded import unguarded_state
from torch._dynamo.source import AttrSource, ClosureSource, GetItemSource
from torch._guards import Source
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols
from torch.utils._pytree import tree_leaves


def value_key(value: Any) -> Hashable:
    try:
        return tensor_key(value) if isinstance(value, torch.Tensor) else object_key(value) or constant_key(value)
    except Unkeyable as e:
        raise CannotReuse(ReuseMissReason.UNKNOWN_CAPTURE, str(e)) from None


def has_grad_fn(value: torch.Tensor) -> bool | None:
    """Whether a tensor is the result of a differentiable operator; None if autograd cannot tell."""
    try:
        return value.grad_fn is not None
    except Exception:
        # Autograd makes the ``grad_fn`` of a view again if the view's base was written to, also for ``is_leaf``. It
        # raises RuntimeError for a view made under no_grad, and what the view's operator raises if the base has another
        # shape by now.
        return None


def autograd_state(value: torch.Tensor) -> tuple[bool, bool | None]:
    """The state of a tensor that the frame may change without changing its metadata."""
    return value.requires_grad, has_grad_fn(value)


def tensor_state(tracker: Any) -> Hashable:
    """All that tracing may read of a realized tensor, whether or not the tensor becomes an operand."""
    value = tracker.proxy.node.meta.get("example_value")
    return tracker.class_type, value_key(value), autograd_state(value), hidden_key(value)


def reads_data(node: torch.fx.Node) -> bool:
    """Whether the value of ``node`` is a number that is read off a tensor, or has a size that is.

    A fake tensor remembers such a number, so that only the first operator that reads it off makes a symbol.
    """
    if "unbacked_bindings" in node.meta or node.target == "item":
        return True
    return any(map(_depends_on_data, tree_leaves(node.meta.get("example_value"))))


def _depends_on_data(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        if not value._has_symbolic_sizes_strides or not has_free_unbacked_symbols(value):
            return False
        return any(map(_depends_on_data, (*value.shape, *value.stride(), value.storage_offset())))
    return isinstance(value, SYMBOLIC) and bool(data_symbols(value))


def cells_of(sources: Iterable[Source], resolve: Resolver) -> Iterator[Source]:
    """The sources of the closure cells of the functions at ``sources``.

    Dynamo reads no such source if it knows the cell by another function.
    """
    for source in sources:
        try:
            value = resolve(source)
        except Exception:
            continue  # nothing there when the frame begins
        kind = type(value)
        if kind is types.MethodType:
            value, source = value.__func__, AttrSource(source, "__func__")
        if type(value) is types.FunctionType:
            yield from (GetItemSource(ClosureSource(source), i) for i in range(len(value.__closure__ or ())))


def source_of_value(proxy: torch.fx.Proxy) -> Source | None:
    """The source of the tensor that ``proxy`` stands for, if it is an input of the graph that operators gave back.

    ``x.contiguous()`` and ``x.to(x.dtype)`` may be ``x``, for the program's ``is`` too.
    """
    tracer: Any = proxy.tracer
    node = proxy.node
    value = node.meta.get("example_value")
    while True:
        if node.op == "placeholder":
            around = next((outer for outer, inner in tracer.lifted_freevars.items() if inner.node is node), None)
            if around is None:
                return getattr(node.meta.get("grapharg"), "source", None)
            tracer, node = around.tracer, around.node
            continue
        call = node.args[0] if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node) else node
        same = next((given for given in call.all_input_nodes if given.meta.get("example_value") is value), None)
        if same is None:
            return None
        node = same


def states_of(values: Sequence[tuple[Source, Any]]) -> list[tuple[Source, Hashable]]:
    """What tracing may read without a guard of each value.  Raises CannotReuse if the program's code would run."""
    try:
        for _, value in values:
            if has_own_dict(type(value)):
                raise RunsCode(f"{of_class(type(value), '__name__')} has a __dict__ of its own")
        return [(source, unguarded_state(value)) for source, value in values]
    except RunsCode as e:
        raise CannotReuse(ReuseMissReason.RUNS_CODE, str(e)) from None
