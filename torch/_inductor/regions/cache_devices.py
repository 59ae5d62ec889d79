"""The devices whose code is cached, and what that code depends on besides the body."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._inductor import config
from torch.utils._pytree import tree_leaves


_TYPES = ("cpu", "cuda")


def devices_of(values: Iterable[Any]) -> set[torch.device]:
    """The devices of all tensors in ``values``."""
    return {value.device for value in tree_leaves(list(values)) if isinstance(value, torch.Tensor)}


def is_cached_for(devices: set[torch.device]) -> bool:
    """Whether code for ``devices`` is cached: for one device of a kind that is known."""
    return len(devices) == 1 and all(device.type in _TYPES for device in devices)


def has_stock_generator(device: torch.device) -> bool:
    """Whether the code for ``device`` is of a generator and a wrapper whose bodies can be told apart from programs."""
    from torch._inductor.codegen.common import get_scheduling_for_device, get_wrapper_codegen_for_device
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    configured = {"cpu": config.cpu_backend == "cpp", "cuda": config.cuda_backend == "triton"}
    # Stock registers one of its own functions, which creates the scheduling of the configured backend.
    scheduling: Any = get_scheduling_for_device(device.type)
    registered = (getattr(scheduling, "__module__", None), get_wrapper_codegen_for_device(device.type))
    own = (get_scheduling_for_device.__module__, PythonWrapperCodegen)
    return configured[device.type] and registered == own


def hardware(device: torch.device) -> list[Any]:
    """What kernels are written for: on a GPU, the properties that are also in the text of each kernel."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.runtime.hints import DeviceProperties

    if device.type != "cpu":
        return [str(item) for item in DeviceProperties.create(device)]
    return [str(pick_vec_isa()), torch.backends.cpu.get_cpu_capability()]
