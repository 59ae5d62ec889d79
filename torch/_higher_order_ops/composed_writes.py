"""Bodies that write to operands: how they are run to be traced.

Note [A composition that writes in place]
A body that writes to an operand is functionalized by functorch while it is traced. Functorch dispatches below autograd,
where some operators that write in place have neither a kernel for functionalization nor an operator of another kind to
stand for them: those that are composed of other operators (``multiply_``, ``selu_``, ``fill_diagonal_``, ``&=``). torch
raises for them. In a flat graph the dispatcher takes a composition apart above autograd. So while such a body is run,
these operators are taken apart here, before they are dispatched.
"""

from __future__ import annotations

import contextlib
import functools
import types
from typing import Any

import torch
from torch._higher_order_ops.auto_functionalize import FunctionalCallableWithEpilogue
from torch.fx.operator_facts import aten_overloads, inplace_position, operator_name
from torch.overrides import TorchFunctionMode


def composing_writes(subgraph: Any) -> contextlib.AbstractContextManager[Any]:
    """The context in which ``subgraph`` is run to be traced: see Note [A composition that writes in place]."""
    if not isinstance(subgraph, FunctionalCallableWithEpilogue):
        return contextlib.nullcontext()
    return _TakesWritesApart()


class _TakesWritesApart(TorchFunctionMode):
    """Takes apart each call of a composition that writes in place."""

    def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = operator_name(func)
        if isinstance(func, types.FunctionType):
            return _out_of_place(func, name, args, kwargs)
        if not _is_composition(name):
            return func(*args, **kwargs)
        packet = getattr(torch.ops.aten, name)
        overload = getattr(packet, torch._C._jit_resolve_packet(f"aten::{name}", *args, **kwargs))
        return overload.decompose(*args, **kwargs)


def _out_of_place(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a function written in Python; one that would call a composition writes its result by a copy instead."""
    if not _is_composition(f"{name}_"):
        return func(*args, **kwargs)
    position = inplace_position(func)
    in_place = args[position] if len(args) > position else kwargs.get("inplace", False)
    if not in_place:
        return func(*args, **kwargs)
    if len(args) > position:
        args = (*args[:position], False, *args[position + 1 :])
    written = args[0] if args else kwargs["input"]
    return written.copy_(func(*args, **{k: v for k, v in kwargs.items() if k != "inplace"}))


@functools.cache
def _is_composition(name: str) -> bool:
    """Whether aten's operator ``name`` writes in place, is composed of others, and cannot be functionalized itself."""
    composed, functionalized = torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Functionalize
    return any(
        overload._schema.is_mutable
        and torch._C._dispatch_has_kernel(overload.name())  # some overloads exist for TorchScript only
        and overload.has_kernel_for_dispatch_key(composed)
        and not overload.has_kernel_for_dispatch_key(functionalized)
        and not overload._schema.arguments[-1].is_out
        for overload in aten_overloads(name)
    )
