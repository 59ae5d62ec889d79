"""The state outside a graph that affects what its operators do, as a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch


# Devices whose autocast state can differ within one graph.
_AUTOCAST_DEVICES = tuple(torch._C._autocast_supported_devices())


def _getters(*names: str) -> tuple[Callable[[], Hashable], ...]:
    return tuple(getattr(torch._C, name) for name in names if hasattr(torch._C, name))


# Getters of the switches that choose between attention kernels.
_ATTENTION_SWITCHES = _getters(
    "_get_flash_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_math_sdp_enabled",
    "_get_cudnn_sdp_enabled",
    "_get_overrideable_sdp_enabled",
)
# Getters of the switches that choose between kernels of other operators, or change how one computes.
_KERNEL_SWITCHES = _getters(
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_cudnn_enabled",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_mkldnn_enabled",
    "_get_mkldnn_deterministic",
    "_get_nnpack_enabled",
)

# (backend, operator) that may compute with lower precision than float32.
_PRECISIONS = tuple((backend, what) for backend in ("mkldnn", "cuda") for what in ("matmul", "conv", "rnn"))

# Indices in a global state key: where the ambient part begins, and where its parts are.
_AMBIENT = 4
_AUTOCASTS, _ATTENTION, _OTHERS = 4, 6, 7


def _precision(setting: tuple[str, str]) -> str:
    # torch.get_float32_matmul_precision() and similar functions raise if backends have precisions of their own. The
    # default is that of float32.
    found: str = torch._C._get_fp32_precision_getter(*setting)
    return "ieee" if found == "none" else found


def autocast_dtypes() -> tuple[torch.dtype, ...]:
    """For each device, what autocast casts to, or would if it were on."""
    return tuple(map(torch.get_autocast_dtype, _AUTOCAST_DEVICES))


def _autocasts() -> tuple[Hashable, ...]:
    return tuple(torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in _AUTOCAST_DEVICES)


def global_state_key() -> tuple[Hashable, ...]:
    """All present state outside the graph that affects what an operator does."""
    transform = torch._C._functorch.peek_interpreter_stack()
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        # Modes and transforms that intercept calls of operators.
        tuple(torch.overrides._get_current_function_mode_stack()),
        (transform.key(), transform.level()) if transform is not None else None,
        # Casts below the graph: for each device, the dtype.
        _autocasts() if torch._C._is_any_autocast_enabled() else None,
        torch.is_autocast_cache_enabled(),
        # Choice of attention kernels,
        (*[switch() for switch in _ATTENTION_SWITCHES], *torch._C._get_sdp_priority_order()),
        # and of all others.
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        tuple(map(_precision, _PRECISIONS)),
        tuple([switch() for switch in _KERNEL_SWITCHES]),
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction(),
        # dtype of the tensors that factories and Python numbers make.
        torch.get_default_dtype(),
        # Whether a saved tensor may be packed.
        torch._C._autograd._saved_tensors_hooks_is_enabled(),
        # Level of forward-mode differentiation: tensors may have tangents.
        torch.autograd.forward_ad._current_level,
    )


def ambient_state(key: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """The part of a global state key that a graph does not set by itself when a backend traces it."""
    return key[_AMBIENT:]


def autocasts_in(key: tuple[Hashable, ...]) -> dict[str, torch.dtype]:
    """The devices for which autocast is on -> the dtype that it casts to."""
    found: Any = key[_AUTOCASTS] or ()
    return {device: dtype for device, dtype in zip(_AUTOCAST_DEVICES, found) if dtype is not None}


def attention_choice(key: tuple[Hashable, ...]) -> Hashable:
    """The part of a global state key that chooses attention kernels."""
    return key[_ATTENTION]


def other_choices(key: tuple[Hashable, ...]) -> Hashable:
    """The rest of a global state key that affects how an operator computes, without autocast."""
    return key[_OTHERS:]
