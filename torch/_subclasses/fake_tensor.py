"""Overlay of torch._subclasses.fake_tensor: makes the fake tensor of an ordinary parameter in one step.

Stock describes a real tensor in full (some 40 properties, for subclasses, views, sparse and nested ones), gives it
symbolic sizes, and compares the result with the description. Each parameter of a model goes through that twice, once in
Dynamo and once before AOTAutograd. For a plain dense parameter with static sizes, only the properties copied below
matter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from torch_regions.overlay import replaces, stock


def _is_static(context: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatefulSymbolicContext

    return (
        type(context) is StatefulSymbolicContext
        and context.view_base_context is None
        and all(size is DimDynamic.STATIC for size in context.dynamic_sizes)
        and not any(context.constraint_sizes)
        and not any(context.constraint_strides)
    )


def fake_of_parameter(converter: Any, mode: Any, t: torch.Tensor, shape_env: Any, context: Any) -> FakeTensor | None:
    """The fake tensor of ``t``, which ``converter`` does not know; None if stock must make it."""
    from torch._subclasses.plain_fake import plain_fake
    from torch._subclasses.plain_parameter import is_plain_parameter

    meta = converter.meta_converter
    if (
        not is_plain_parameter(t)
        or not _is_static(context)
        or meta.copy_data
        or (shape_env is not None and shape_env.should_record_events)
        or torch.is_inference_mode_enabled()
        or peek_interpreter_stack() is not None
        or torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Functionalize)
        or torch._logging._internal.trace_log.handlers
    ):
        return None
    describer, storage = meta.describer, t.untyped_storage()
    if storage in describer.lookup_storage or t in describer.lookup_tensor:
        return None  # tied to another parameter, or described before
    with no_dispatch():
        on_meta = torch.empty(t.shape, dtype=t.dtype, device="meta")
        if on_meta.stride() != t.stride():
            return None
        fake = plain_fake(mode, on_meta, t.device)
    fake.requires_grad = t.requires_grad
    if t.requires_grad and t.grad_dtype != t.dtype:
        fake.grad_dtype = t.grad_dtype
    fake._is_param = True
    meta.arg_cnt += 1
    meta.hit += 1
    # Both are new to the describer, so they get the next numbers.
    number = describer.lookup_storage[storage] = describer.next_storage_id
    describer.next_storage_id += 1
    meta.storage_memo[number] = fake.untyped_storage()
    number = describer.lookup_tensor[t] = describer.next_tensor_id
    describer.next_tensor_id += 1
    meta.tensor_memo[number] = fake
    return fake


@replaces("FakeTensorConverter.from_real_tensor")
def from_real_tensor(
    self: Any,
    fake_mode: Any,
    t: torch.Tensor,
    make_constant: bool = False,
    shape_env: Any = None,
    *,
    source: Any = None,
    symbolic_context: Any = None,
    trace: bool = True,
) -> FakeTensor:
    if type(t) is torch.nn.Parameter and not make_constant and source is not None and self._get_memo(t) is None:
        fake = fake_of_parameter(self, fake_mode, t, shape_env, symbolic_context)
        if fake is not None:
            return fake
    convert = stock("torch._subclasses.fake_tensor:FakeTensorConverter.from_real_tensor")
    return convert(  # type: ignore[no-any-return]
        self,
        fake_mode,
        t,
        make_constant,
        shape_env,
        source=source,
        symbolic_context=symbolic_context,
        trace=trace,
    )
