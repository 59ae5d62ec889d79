"""Overlay of torch._higher_order_ops.invoke_subgraph: at run time, a region is its body.

Note [A region at run time is its body]
The operator exists for tracers: functionalization, fake tensors, proxies. When none of them looks on (the graph runs
under the plain `eager` backend, or any backend that executes it as it is), dispatching the call leads stock to an
autograd.Function which wants to trace a joint graph in its backward, and fails there for want of a fake mode. Running
the body in place of the call is what the program without regions does: gradients, double backward, hooks, saved
tensors, random numbers, `requires_grad` of each output and the user's own modes are those of its operators.
"""

from __future__ import annotations

from typing import Any

from torch._higher_order_ops.utils import FunctionalizeCtxWrapper
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import torch
from torch_regions.overlay import replaces, stock


def _tracer_looks_on(subgraph: Any, operands: tuple[Any, ...]) -> bool:
    from torch._guards import detect_fake_mode

    if isinstance(subgraph, FunctionalizeCtxWrapper) or detect_fake_mode(operands) is not None:
        return True
    if any(isinstance(a, FunctionalTensor) for a in operands):
        return True
    functional = torch._C._TorchDispatchModeKey.FUNCTIONAL
    if get_proxy_mode() is not None or torch._C._get_dispatch_mode(functional) is not None:
        return True
    # DebugMode has a record of its own for a call; only autograd takes a call away from it.
    return not torch.is_grad_enabled() and any(isinstance(m, DebugMode) for m in _get_current_dispatch_mode_stack())


@replaces("InvokeSubgraphHOP.__call__")
def __call__(self: Any, subgraph: Any, identifier: str | None, *operands: Any) -> Any:
    # See Note [A region at run time is its body]
    if _tracer_looks_on(subgraph, operands):
        call = stock("torch._higher_order_ops.invoke_subgraph:InvokeSubgraphHOP.__call__")
        return call(self, subgraph, identifier, *operands)
    if getattr(subgraph, "_boxed_call", False):
        return subgraph(list(operands))
    return subgraph(*operands)
