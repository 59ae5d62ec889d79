"""All state of a process that a compile may set aside; what differs afterwards was not put back.

``GlobalState()`` notes the state, and ``differing()`` names what is another by then: of the collector, threads,
descriptors, children, temporary files, the interpreter, torch's own thread-local state, dispatch modes, configs,
thread-locals, context variables, and what each name of torch's modules and classes, and of some of Python's, means.
"""

from __future__ import annotations

import contextvars
import gc
import logging
import operator
import os
import random
import signal
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch


# Modules whose functions and classes are looked at for patches.
_WATCHED = (
    "torch",
    "torch_regions",
    "builtins",
    "math",
    "operator",
    "functools",
    "inspect",
    "itertools",
    "copy",
    "random",
)
_CONFIGS = ("torch._dynamo.config", "torch._functorch.config", "torch._inductor.config", "torch.compiler.config")


class GlobalState:
    """The state at one time; ``folders`` are searched for temporary files, beside the one for temporary files."""

    def __init__(self, folders: tuple[str, ...] = ()) -> None:
        self.folders = folders
        self.values = self._now()
        self.names = Names()
        # Keys that are not compared.
        self.moving: set[str] = set()

    def _now(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part in (_collector, _process, _interpreter, _torch, _modes, _configs, _locals):
            found.update(part())
        found.update(_temporary(self.folders))
        return found

    def differing(self) -> list[str]:
        """Keys of what is another now."""
        before, now, missing = self.values, self._now(), object()
        found = [k for k in before.keys() | now.keys() if before.get(k, missing) != now.get(k, missing)]
        return sorted(key for key in [*found, *self.names.differing()] if key not in self.moving)


def _collector() -> Iterator[tuple[str, Any]]:
    yield "collector.enabled", gc.isenabled()
    yield "collector.threshold", gc.get_threshold()
    yield "collector.frozen", gc.get_freeze_count() > 0
    yield "collector.debug", gc.get_debug()
    yield "collector.callbacks", len(gc.callbacks)


def _process() -> Iterator[tuple[str, Any]]:
    yield "threads", sorted(thread.name for thread in threading.enumerate())
    yield "threads.native", len(os.listdir("/proc/self/task"))
    own = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        targets = {}
        for name in os.listdir(own):
            if int(name) != own:
                try:
                    targets[name] = os.readlink(f"/proc/self/fd/{name}")
                except OSError:
                    continue
    finally:
        os.close(own)
    yield "descriptors", targets
    children = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as stream:
                children += stream.read().split()
        except OSError:
            continue
    yield "children", sorted(children)
    yield "environment", dict(os.environ)
    yield "folder", os.getcwd()


def _interpreter() -> Iterator[tuple[str, Any]]:
    yield "trace", sys.gettrace()
    yield "profile", sys.getprofile()
    yield "recursion limit", sys.getrecursionlimit()
    yield "switch interval", sys.getswitchinterval()
    yield "streams", (id(sys.stdin), id(sys.stdout), id(sys.stderr))
    yield "meta path", [id(finder) for finder in sys.meta_path]
    yield "hooks", (id(sys.excepthook), id(sys.displayhook), id(threading.excepthook), id(sys.unraisablehook))
    yield "search path", list(sys.path)
    yield "warnings", ([tuple(map(str, entry)) for entry in warnings.filters], id(warnings.showwarning))
    yield "signals", {number.name: id(signal.getsignal(number)) for number in signal.Signals}
    yield "signal mask", signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield "logging", [(logging.root.level, logging.root.manager.disable, len(logging.root.handlers))]
    yield "random", hash(random.getstate())


def _torch() -> Iterator[tuple[str, Any]]:
    for name in sorted(vars(torch._C)):
        if name in _TORCH_GETTERS:
            yield f"torch.{name}", repr(getattr(torch._C, name)())
    yield "torch.include set", str(torch._C._dispatch_tls_local_include_set())
    yield "torch.exclude set", str(torch._C._dispatch_tls_local_exclude_set())
    yield "torch.grad", torch.is_grad_enabled()
    yield "torch.inference", torch.is_inference_mode_enabled()
    yield "torch.anomaly", torch.is_anomaly_enabled()
    yield "torch.autocast", [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]
    yield "torch.autocast dtype", [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda")]
    yield "torch.autocast cache", torch.is_autocast_cache_enabled()
    yield "torch.default dtype", torch.get_default_dtype()
    yield "torch.threads", (torch.get_num_threads(), torch.get_num_interop_threads())
    yield "torch.random", hash(torch.get_rng_state().numpy().tobytes())
    yield "torch.tracing", torch._C._get_tracing_state() is None
    yield "torch.compiling", (torch.compiler.is_compiling(), torch.compiler.is_exporting())
    yield (
        "torch.saved tensors",
        repr(torch._C._autograd._saved_tensors_hooks_get_default_hooks_enabled())
        if hasattr(torch._C._autograd, "_saved_tensors_hooks_get_default_hooks_enabled")
        else None,
    )
    frames = torch._C._dynamo.eval_frame
    yield "dynamo.callback", repr(frames.get_eval_frame_callback())
    for name in ("get_eval_frame_isolate_recompiles_id", "get_c_recursion_limit", "get_bytecode_debugger_callback"):
        if hasattr(frames, name):
            yield f"dynamo.{name}", repr(getattr(frames, name)())


_TORCH_GETTERS = {
    *("_is_any_autocast_enabled", "_is_fwd_grad_enabled", "_is_multithreading_enabled", "_is_torch_function_enabled"),
    *("_is_torch_function_all_disabled", "_is_torch_function_mode_enabled", "_is_tracing", "_is_view_replay_enabled"),
    *("_is_grad_layout_enforcement_enabled", "_get_autograd_fallback_mode", "_get_torch_function_state"),
    *("_get_deterministic_algorithms", "_get_deterministic_algorithms_warn_only", "_get_float32_matmul_precision"),
    *(
        "_get_default_device",
        "_get_warnAlways",
        "_get_mkldnn_enabled",
        "_get_onednn_allow_tf32",
        "_get_math_sdp_enabled",
    ),
    *("_get_flash_sdp_enabled", "_get_cudnn_enabled", "_get_cudnn_deterministic", "_get_cudnn_benchmark"),
    *("_get_deterministic_fill_uninitialized_memory", "_get_graph_executor_optimize", "_meta_in_tls_dispatch_include"),
    *("_get_dtensor_allow_implicit_replication", "_len_torch_function_stack"),
}


def _modes() -> Iterator[tuple[str, Any]]:
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    yield "modes.dispatch", [type(mode).__name__ for mode in _get_current_dispatch_mode_stack()]
    yield (
        "modes.dispatch slots",
        [
            torch._C._get_dispatch_mode(key) is None
            for key in (
                torch._C._TorchDispatchModeKey.FAKE,
                torch._C._TorchDispatchModeKey.PROXY,
                torch._C._TorchDispatchModeKey.FUNCTIONAL,
            )
        ],
    )
    yield "modes.function", [type(mode).__name__ for mode in _get_current_function_mode_stack()]
    yield "modes.functorch", torch._C._functorch.get_dynamic_layer_stack_depth()
    yield "modes.functorch single level", torch._C._functorch.get_single_level_autograd_function_allowed()


def _configs() -> Iterator[tuple[str, Any]]:
    for name in _CONFIGS:
        module = sys.modules.get(name)
        if module is not None:
            for option, value in module.get_config_copy().items():
                yield f"config.{name}.{option}", repr(value)


def _locals() -> Iterator[tuple[str, Any]]:
    """Thread-locals and context variables, by the module and name that hold them."""
    for name, module in sorted(sys.modules.items()):
        if not name.startswith(("torch.", "torch_regions")):
            continue
        for attribute, value in list(vars(module).items()):
            if issubclass(type(value), threading.local):
                for key, content in vars(value).items():
                    yield f"local.{name}.{attribute}.{key}", _short(content)
    for variable, content in contextvars.copy_context().items():
        if "ConfigPatch" not in variable.name:  # one for each patch that is made; what it sets is among the configs
            yield f"context.{variable.name}", _short(content)


def _short(value: Any) -> Any:
    """What tells two states of a thread-local apart, without its contents where those are a cache."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return type(value).__name__, len(value)
    return type(value).__name__, id(value) if isinstance(value, (type, types.FunctionType)) else None


class Names:
    """What each name of the watched modules and of their classes means, at one time."""

    def __init__(self) -> None:
        self.holders: dict[str, tuple[Any, dict[str, Any]]] = {}
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] not in _WATCHED or not isinstance(module, types.ModuleType):
                continue
            self.holders[name] = (module, dict(vars(module)))
            for attribute, value in list(vars(module).items()):
                if issubclass(type(value), type) and value.__module__ == name:
                    self.holders[f"{name}.{attribute}"] = (value, dict(vars(value)))
        functions = [v for _, before in self.holders.values() for v in before.values() if type(v) is types.FunctionType]
        self.codes = {id(function): (function, function.__code__) for function in functions}

    def differing(self) -> list[str]:
        """Names that mean another function, class, flag or None now, and functions that have another code."""
        found = []
        for name, (holder, before) in self.holders.items():
            now = vars(holder)
            if len(now) == len(before) and all(map(operator.is_, now.values(), before.values())):
                continue
            for key in before.keys() | now.keys():
                old, new = before.get(key), now.get(key)
                if old is not new and (_matters(old) or _matters(new)) and f"{name}.{key}" not in _MADE_ONCE:
                    found.append(f"patched.{name}.{key}")
        found += [f"code.{f.__module__}.{f.__qualname__}" for f, code in self.codes.values() if f.__code__ is not code]
        return sorted(found)


def _matters(value: Any) -> bool:
    """Whether a name that meant this, or does now, tells a patch or a flag; the others are counters and caches."""
    function = getattr(value, "__func__", value) if type(value) in (classmethod, staticmethod) else value
    return type(function) in (types.FunctionType, types.BuiltinFunctionType, property, type, bool)


# Made when it is first needed, and dropped by reset().
_MADE_ONCE = {"torch._dynamo.pgo._CODE_STATE"}


def _temporary(folders: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    yield "temporary", sorted(os.listdir(tempfile.gettempdir()))
    for folder in folders:
        names = [name for _, inner, files in os.walk(folder) for name in [*inner, *files]]
        yield f"temporary.{folder}", sorted(name for name in names if "tmp" in name or name.startswith("."))
