"""Overlay of torch._higher_order_ops.invoke_subgraph: the mark of a region, and a region at run time.

Note [A region at run time is its body]
The operator exists for tracers: functionalization, fake tensors, proxies. Without a tracer (the graph runs under the
plain `eager` backend, or any backend that executes it as it is), stock's dispatch of the call leads to an
autograd.Function, which tries to trace a joint graph in its backward and fails because there is no fake mode. Running
the body instead of the call does what the program without regions does: gradients, double backward, hooks, saved
tensors, random numbers, `requires_grad` of each output and the user's own modes are those of its operators.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._higher_order_ops.invoke_subgraph import (
    InvokeSubgraphAutogradOp,
    OutputMetadata,
    _current_invoke_subgraph_call_id,
    _extract_nested_region_config,
    invoke_subgraph_placeholder,
)
from torch._higher_order_ops.utils import FunctionalizeCtxWrapper
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.compiler import is_dynamo_compiling, is_exporting
from torch.fx import Proxy
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, get_proxy_mode
from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from torch_regions.overlay import replaces, stock


# Classes of operands that belong to no tracer.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, type(None)})
# Classes of operands that are neither DTensors nor meshes.
_USUAL = _PLAIN | {FakeTensor, FunctionalTensor, torch.SymInt}


def _tracer_looks_on(subgraph: Any, operands: tuple[Any, ...]) -> bool:
    if (
        not torch._C._len_torch_dispatch_stack()
        and torch._guards.TracingContext.try_get() is None
        and _PLAIN.issuperset(map(type, operands))
        and not isinstance(subgraph, FunctionalizeCtxWrapper)
    ):
        return get_proxy_mode() is not None  # the checks below cost time for each operand of each call
    from torch._guards import detect_fake_mode

    if isinstance(subgraph, FunctionalizeCtxWrapper) or detect_fake_mode(operands) is not None:
        return True
    if any(isinstance(a, FunctionalTensor) for a in operands):
        return True
    functional = torch._C._TorchDispatchModeKey.FUNCTIONAL
    if get_proxy_mode() is not None or torch._C._get_dispatch_mode(functional) is not None:
        return True
    # DebugMode records a call itself, unless autograd handles the call first.
    return not torch.is_grad_enabled() and any(isinstance(m, DebugMode) for m in _get_current_dispatch_mode_stack())


@replaces("InvokeSubgraphHOP.__call__")
def __call__(self: Any, subgraph: Any, identifier: str | None, *operands: Any) -> Any:
    if not _PLAIN.issuperset(map(type, operands)) and any(isinstance(operand, Proxy) for operand in operands):
        # fx traces the code of an unpickled graph. Stock's check refuses operands that are proxies.
        return HigherOrderOperator.__call__(self, subgraph, identifier, *operands)
    # See Note [A region at run time is its body]
    if _tracer_looks_on(subgraph, operands):
        call = functools.partial(stock("torch._higher_order_ops.invoke_subgraph:InvokeSubgraphHOP.__call__"), self)
        if not _USUAL.issuperset(map(type, operands)):
            from torch._higher_order_ops.region_dtensors import call_on_local_tensors, is_recorded, takes_dtensors

            if takes_dtensors(subgraph, operands):
                if is_recorded(operands):
                    return _under_autograd(subgraph, identifier, operands)
                return call_on_local_tensors(call, subgraph, identifier, operands)
        return call(subgraph, identifier, *operands)
    if getattr(subgraph, "_boxed_call", False):
        return subgraph(list(operands))
    if isinstance(subgraph, torch.fx.GraphModule) and not (subgraph._forward_hooks or subgraph._forward_pre_hooks):
        # A body is no module of the program's: hooks on all modules would run for each region, and may change results.
        return subgraph.forward(*operands)
    return subgraph(*operands)


def _under_autograd(subgraph: Any, identifier: Any, operands: tuple[Any, ...]) -> Any:
    """What autograd's dispatch of a call does. Stock's runs the body on plain tensors of the operands' sizes first."""
    from torch._higher_order_ops.region_metadata import body_of, examples_of_results

    examples = examples_of_results(body_of(subgraph))
    without = {i for i, e in enumerate(examples) if not (isinstance(e, torch.Tensor) and e.requires_grad)}
    metadata = OutputMetadata(num_fw_outs=len(examples), indexes_with_no_grad=without)
    return InvokeSubgraphAutogradOp.apply(subgraph, identifier, metadata, *operands)


@replaces("InvokeSubgraphHOP.gen_schema")
def gen_schema(self: Any, subgraph: Any, identifier: str | None, *operands: Any) -> Any:
    from torch._higher_order_ops.region_autocast import autocast_of
    from torch._higher_order_ops.region_schema import remembered_schema

    generate = stock("torch._higher_order_ops.invoke_subgraph:InvokeSubgraphHOP.gen_schema")
    # The schema does not depend on the identifier: it has the types of its arguments.
    with autocast_of(subgraph):
        return remembered_schema(subgraph, operands, lambda: generate(self, subgraph, identifier, *operands))


@replaces
def trace_joint_graph_as_bwd(
    subgraph: Any, num_primals: int, joint_operands: Any, include_key_set: Any, exclude_key_set: Any
) -> Any:
    from torch._higher_order_ops.region_autocast import turn_off, with_autocast_of_thread
    from torch._higher_order_ops.region_dtensors import trace_joint

    trace = stock("torch._higher_order_ops.invoke_subgraph:trace_joint_graph_as_bwd")
    excluded = with_autocast_of_thread(exclude_key_set)
    keys = include_key_set, excluded
    joint = trace_joint(subgraph, num_primals, joint_operands, keys, _extract_nested_region_config(subgraph))
    if joint is None:
        joint = trace(subgraph, num_primals, joint_operands, include_key_set, excluded)
    if isinstance(joint, torch.fx.GraphModule):
        turn_off(joint)
    return joint


@replaces("InvokeSubgraphAutogradOp.forward")
@staticmethod
def _forward(ctx: Any, subgraph: Any, identifier: str, output_metadata: Any, *operands: Any) -> Any:
    from torch._higher_order_ops.region_metadata import body_of
    from torch._higher_order_ops.saved_operands import save_what_was_taken

    ctx.set_materialize_grads(False)
    forward = stock("torch._higher_order_ops.invoke_subgraph:InvokeSubgraphAutogradOp.forward")
    results = forward(ctx, subgraph, identifier, output_metadata, *operands)
    # See Note [A call saves what it took]
    save_what_was_taken(ctx, body_of(subgraph), operands)
    return results


@replaces("InvokeSubgraphAutogradOp.backward")
@staticmethod
def _backward(ctx: Any, *grad_outs: Any) -> Any:
    from torch._higher_order_ops.missing_gradients import gradients

    # See Note [A result without a gradient]
    return gradients(ctx, grad_outs, stock("torch._higher_order_ops.invoke_subgraph:InvokeSubgraphAutogradOp.backward"))


def _answer(mode: Any, subgraph: Any, identifier: str | None, *operands: Any) -> Any:
    from torch._higher_order_ops.composed_writes import composing_writes
    from torch._higher_order_ops.region_autocast import autocast_of, casting_parts
    from torch._higher_order_ops.region_metadata import body_of, known_results

    # This skips the mode's lookup, which hashes the metadata of all operands and makes results one by one. A mode that
    # propagates real tensors computes what the call returns.
    known = None if mode.propagate_real_tensors else known_results(subgraph, operands, mode, aliases=True)
    if known is not None:
        return known
    body = body_of(subgraph)
    with autocast_of(body), casting_parts(body), composing_writes(subgraph):
        taken = (subgraph, identifier, *operands)
        return mode.__torch_dispatch__(torch.ops.higher_order.invoke_subgraph, [], taken, {})


def _record(proxy_mode: Any, subgraph: Any, identifier: str | None, *operands: Any) -> Any:
    from torch._higher_order_ops.composed_writes import composing_writes
    from torch._higher_order_ops.region_autocast import casting_parts
    from torch._higher_order_ops.region_metadata import body_of
    from torch._higher_order_ops.region_tracing import record_call

    results = record_call(proxy_mode, subgraph, identifier, operands, _current_invoke_subgraph_call_id())
    if results is not None:
        return results
    with casting_parts(body_of(subgraph)), composing_writes(subgraph):
        return _trace(proxy_mode, subgraph, identifier, *operands)


_of_modes: dict[Any, Callable[..., Any]] = torch.ops.higher_order.invoke_subgraph.python_key_table
_trace = _of_modes[ProxyTorchDispatchMode]
_of_modes[ProxyTorchDispatchMode] = _record
_of_modes[FakeTensorMode] = _answer


@replaces
def mark_compile_region(
    fn: Any = None,
    options: Any = None,
    max_reuse_entries: int = 8,
    reuse_hash_fn: Callable[..., int] | None = None,
) -> Any:
    """Marks a callable as a region: torch.compile traces it once and reuses the body for other calls where that is
    correct.

    ``fn`` may be a function, lambda, method, static or class method object, functools.partial, module or any other
    callable. Without ``fn``, returns a decorator. The marked callable has the signature, name and docstring of ``fn``;
    a static or class method stays one. A generator function is returned unmarked, with a warning, because its body runs
    in pieces, between pieces of its caller.

    Raises TypeError if ``fn`` is not callable, or ``max_reuse_entries`` is no integer.
    """
    if fn is None:
        return lambda later: mark_compile_region(later, options, max_reuse_entries, reuse_hash_fn)
    if torch.compiler.is_dynamo_compiling():
        # Dynamo traces this branch, so it does only what Dynamo can trace.
        return _mark_while_tracing(fn)
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(mark_compile_region(fn.__func__, options, max_reuse_entries, reuse_hash_fn))
    if not callable(fn):
        raise TypeError(f"nested_compile_region marks a callable, not {fn!r}; put it on a function, method or module")
    if not isinstance(max_reuse_entries, int):
        raise TypeError(f"max_reuse_entries is a number of traces that are kept, not {max_reuse_entries!r}")
    if _runs_piecemeal(fn):
        warnings.warn(
            f"nested_compile_region leaves {fn!r} unmarked: generators and coroutines run a piece at a time;"
            " mark the function that each piece calls",
            stacklevel=2,
        )
        return fn
    while _is_mark(fn):
        fn = fn.__marked_compile_region_fn__
    return _mark(fn, options, max_reuse_entries, reuse_hash_fn)


def _is_mark(fn: Any) -> bool:
    """Whether ``fn`` is what a mark has returned.  functools.wraps gives a mark's attributes to what wraps it."""
    own = vars(fn) if isinstance(fn, types.FunctionType) else {}
    return "__marked_compile_region_fn__" in own and own.get("__wrapped__") is own["__marked_compile_region_fn__"]


def _runs_piecemeal(fn: Any) -> bool:
    function = fn
    while isinstance(function, functools.partial):
        function = function.func
    return (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    )


def _mark(fn: Any, options: Any, max_reuse_entries: int, reuse_hash_fn: Any) -> Any:
    # Only a function's ``__dict__`` is copied; that of a module or another object is its own state.
    updated = ("__dict__",) if isinstance(fn, (types.FunctionType, types.MethodType)) else ()

    @functools.wraps(fn, updated=updated)
    def region(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or is_exporting():
            return invoke_subgraph_placeholder(fn, *args, **kwargs)
        return fn(*args, **kwargs)

    region.__code__ = _code_of_mark(fn, region.__code__)
    marked: Any = region
    marked.__marked_compile_region_fn__ = fn
    # Dynamo reads these when it inlines the mark. They are the mark's, not the function's: another mark has its own.
    marked.__marked_compile_region_config__ = options
    marked.__marked_compile_region_max_reuse_entries__ = max_reuse_entries
    marked.__marked_compile_region_reuse_hash_fn__ = reuse_hash_fn
    return marked


def _code_of_mark(fn: Any, code: types.CodeType) -> types.CodeType:
    """The code object of a mark of ``fn``, for when Dynamo does not inline the mark but compiles it as a frame.

    Marks must not share a code object that is compiled: they would share its recompile limit and its history of dynamic
    sizes. If ``fn`` will be a frame of its own, Dynamo skips the mark's frame, so that the program after a graph break
    compiles as without the mark.
    """
    function = getattr(fn, "__func__", fn)
    if not isinstance(function, types.FunctionType):
        function = getattr(type(fn), "__call__", None)  # noqa: B004
    if isinstance(function, types.FunctionType) and str(function.__module__).partition(".")[0] != "torch":
        set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))
        return code
    return code.replace(co_name=getattr(fn, "__name__", type(fn).__name__))


def _mark_while_tracing(fn: Any) -> Any:
    if not callable(fn):
        raise TypeError("nested_compile_region marks a callable; put it on a function, method or module")

    def region(*args: Any, **kwargs: Any) -> Any:
        return invoke_subgraph_placeholder(fn, *args, **kwargs)

    return region
