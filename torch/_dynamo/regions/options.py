"""The options of regions.  Importing Dynamo adds them to ``torch._dynamo.config``."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from torch._dynamo import config
from torch._dynamo.regions.outcomes import RegionInlineReason
from torch.utils._config_module import Config, _ConfigEntry


_VERIFY = "verify_region_reuse"
_AUTOMATIC = "automatic_nested_compile_regions"
_POLICY = "outlining_policy"
_WARN = "warn_without_regions"
_FLAG = "use_graph_deduplication"
# Options of AOTAutograd that do something to the operators of a graph and do not look into bodies.
_WITHOUT_BODIES = (
    "joint_custom_pass",
    "selective_decompose",
    "enable_complex_wrapper",
    "fake_tensor_propagate_real_tensors",
)


def _add(name: str, default: Any, env: str) -> None:
    """Adds an option, or lets the environment variable ``env`` set the default of an option that stock has."""
    options: dict[str, _ConfigEntry] = vars(config)["_config"]
    entry = _ConfigEntry(Config(default=default, value_type=type(default), env_name_default=[env]), name)
    if name in options:
        entry.user_override = options[name].user_override
    options[name] = entry


_add(_VERIFY, False, "TORCH_REGIONS_VERIFY")
_add(_AUTOMATIC, True, "TORCH_REGIONS_AUTOMATIC")
_add(_POLICY, True, "TORCH_REGIONS_POLICY")
_add(_WARN, True, "TORCH_REGIONS_WARN")
_add(_FLAG, False, "TORCHDYNAMO_USE_GRAPH_DEDUPLICATION")


def verifying() -> bool:
    """Whether a region call that could be stamped out is traced instead, and compared with the expected result."""
    return bool(getattr(config, _VERIFY))


def automatic() -> bool:
    """Whether calls of repeated modules become regions: the flag is on, and so is its option for modules."""
    return bool(getattr(config, _FLAG)) and bool(getattr(config, _AUTOMATIC))


def judging() -> bool:
    """Whether a repeat is outlined only where that pays; see outline/policy.py."""
    return bool(getattr(config, _POLICY))


def warns() -> bool:
    """Whether a frame that has layers alike and no region says why."""
    return bool(getattr(config, _WARN))


def weights_are_attributes(export: bool) -> bool:
    """Whether Dynamo makes the weights of a frame, which may be one for an export, attributes of its graph."""
    options: Any = config
    inductor: Any = torch._inductor.config
    return bool(export or options.install_free_tensors or options.prepare_freezing or inductor.freezing)


def why_no_bodies() -> RegionInlineReason | None:
    """Why no body may be called in what is compiled now; None if bodies may be called."""
    from torch._dynamo import compiled_autograd

    options, state = config, vars(compiled_autograd)
    if state["compiled_autograd_enabled"] or state["in_compiled_autograd_region"] or options.compiled_autograd:
        return RegionInlineReason.COMPILED_AUTOGRAD
    if any(getattr(torch._functorch.config, name) for name in _WITHOUT_BODIES):
        return RegionInlineReason.AOTAUTOGRAD_OPTION
    return RegionInlineReason.MEMORY_BUDGET if _runs_again(torch._functorch.config) else None


def _runs_again(options: Any) -> bool:
    """Whether the partitioner may let the backward run any operator again: a call would draw other numbers there."""
    usual = options.activation_memory_budget == 1 and options.ban_recompute_not_in_allowlist
    return not usual or bool(options.aggressive_recomputation)


def without_flag_in(export: bool) -> contextlib.AbstractContextManager[Any]:
    """Turns the flag off while a frame is traced for an export, strict or not, or where no body may be called.

    An exported program must not depend on the environment of the process that exports it.
    """
    options: Any = config
    off = export or torch.compiler.is_exporting() or why_no_bodies() is not None
    return options.patch({_FLAG: False}) if off and getattr(config, _FLAG) else contextlib.nullcontext()
