"""Overlay of torch._subclasses.fake_tensor: makes ordinary fake tensors in one step.

Stock describes a real tensor in full (some 40 properties, for subclasses, views, sparse and nested ones), gives it
symbolic sizes, and compares the result with the description. Each parameter of a model goes through that twice, once in
Dynamo and once before AOTAutograd. For a plain dense parameter with static sizes, only the properties copied below
matter.

Stock sets some twenty attributes on each fake tensor that it makes, one by one, most of them to None. They are the same
for all fake tensors of one mode and device that are made from a meta tensor alone. So stock makes the first one, and
the others get its attributes at once. A call of a region makes well over a hundred of them from end to end.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConfig, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from torch_regions.overlay import replaces, stock


# mode -> device -> the attributes that stock sets on a fake tensor of these
_given: weakref.WeakKeyDictionary[FakeTensorMode, dict[torch.device, dict[str, Any]]] = weakref.WeakKeyDictionary()


def plain_fake(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> FakeTensor:
    """The same as ``FakeTensor(mode, meta, device)``, for a tensor ``meta`` on the meta device."""
    of_mode = _given.get(mode)
    if of_mode is None:
        of_mode = _given[mode] = {}
    given = of_mode.get(device)
    if given is None or FakeTensorConfig.debug or meta.device.type != "meta":
        made = FakeTensor(mode, meta, device)
        if not FakeTensorConfig.debug:
            # The mode is left out: the entry must not keep its own key alive.
            of_mode[device] = {name: value for name, value in vars(made).items() if value is not mode}
        return made
    fake: Any = torch.Tensor._make_subclass(
        FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=given["_fake_device"]
    )
    if mode._allow_unsafe_data_ptr_access:
        torch._C._set_warn_deprecated_on_mutable_data_ptr(fake)
    else:
        torch._C._set_throw_on_mutable_data_ptr(fake)
    vars(fake).update(given)
    fake.fake_mode = mode
    return fake


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
