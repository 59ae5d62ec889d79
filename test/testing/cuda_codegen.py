"""Compiles a model for CUDA without one, runs the wrappers on fake tensors, and tells what they did.

The wrapper is the one that Inductor writes. What it calls is replaced while it is loaded: a Triton kernel notes that it was
launched, memory is a fake tensor, and operators of torch run on fake tensors. So launches, copies, and the memory that is
alive at each moment are those of a step on the device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch._dynamo
import torch._inductor.config
from torch._inductor.async_compile import AsyncCompile, _load_triton_kernel_from_source
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
from torch._inductor.select_algorithm import AlgorithmSelectorCache, TritonTemplateCaller
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


STREAM = 17  # what the device is said to have as its stream
ALIGNMENT = 16


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A Triton kernel, which is known by what it does: its source without its name."""

    name: str
    source: str

    @property
    def content(self) -> str:
        return hashlib.sha256(self.source.replace(self.name, "kernel").encode()).hexdigest()[:16]

    @property
    def only_copies(self) -> bool:
        """Whether each value that it stores is one that it loaded, from an address that it did not look up."""
        body = self.source.split("@triton.jit")[1]
        values = re.findall(r"^    (tmp\d+) = (.*)$", body, re.MULTILINE)
        return bool(values) and all(re.match(r"tl\.load\((?!.*tmp)", value) for _, value in values)

    @property
    def aligned(self) -> list[int]:
        """The arguments that Triton is told are addresses, or numbers, that 16 divides."""
        return [int(n) for n in re.findall(r"\((\d+),\): \[\['tt\.divisibility', 16\]\]", self.source)]


@dataclasses.dataclass
class Record:
    """What one step of a compiled model did."""

    wrappers: list[str] = dataclasses.field(default_factory=list)
    kernels: dict[str, Kernel] = dataclasses.field(default_factory=dict)
    defined: list[list[str]] = dataclasses.field(default_factory=list)  # by wrapper, in order
    launches: Counter[str] = dataclasses.field(default_factory=Counter)
    operators: Counter[str] = dataclasses.field(default_factory=Counter)
    peak: int = 0  # bytes, of parameters, values between wrappers and inside of them
    graphs: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # what each CUDA graph would be made of
    tuned: set[tuple[str, ...]] = dataclasses.field(default_factory=set)  # which choices max_autotune has, by operator
    wrong: list[str] = dataclasses.field(default_factory=list)  # a launch outside of the guard, a misaligned address

    @property
    def copies(self) -> int:
        """Launches that only move data, by Triton kernels and by torch's operators."""
        kernels = sum(n for content, n in self.launches.items() if self.kernels[content].only_copies)
        return kernels + sum(n for name, n in self.operators.items() if name in _COPIES)


_COPIES = {"aten.copy_.default", "aten.clone.default", "aten._to_copy.default"}


class _Memory:
    """The storages that are alive, and the most that they were together."""

    def __init__(self) -> None:
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.alive and not self.alive[key][0].expired():
            return
        self.alive[key] = (StorageWeakRef(storage), storage.nbytes())
        self.alive = {key: entry for key, entry in self.alive.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))


class _Operators(TorchDispatchMode):
    """Counts the operators that the wrappers call, and follows the memory that they return."""

    def __init__(self, device: _Device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.device.running:
            self.device.record.operators[str(func)] += 1
            if not self.device.guarded:
                self.device.record.wrong.append(f"{func} outside of the device guard")
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.device.memory.add(value)
        return result


class _ConstantsOnCpu(TorchDispatchMode):
    """A constant that Inductor computes while it compiles is computed here."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


def _deduce_on_cpu(self: Any, node: Any) -> Any:
    with _ConstantsOnCpu():
        return _deduce(self, node)


_deduce = UniformValueConstantFolder._deduce_value


class _Device:
    """What the wrappers call in place of the device, while they are loaded and run."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.memory = _Memory()
        self.guarded = 0
        self.running = False

    def kernel(self, name: str, source: str, device_str: str = "cuda") -> Any:
        kernel = Kernel(name, source)
        self.record.kernels.setdefault(kernel.content, kernel)
        self.record.defined[-1].append(kernel.content)
        return _Launcher(self, kernel)

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """What happens inside is no operator of the wrapper."""
        before, self.running = self.running, False
        try:
            yield
        finally:
            self.running = before

    def empty(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        with self._quiet():
            return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    def reinterpret(self, tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
        with self._quiet():
            return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

    def copy_if_misaligned(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.storage_offset() * tensor.element_size() % ALIGNMENT:
            with self._quiet():
                self.record.operators["aten.clone.default"] += 1
                return tensor.clone()
        return tensor

    def guard(self, index: int) -> Any:
        return _Guard(self)

    def stream(self, index: int) -> int:
        return STREAM + index

    def graph(self, model: Any, static_input_idxs: Any = (), **told: Any) -> Any:
        self.record.graphs.append(
            {
                "static": len(static_input_idxs),
                "inputs": len(told["placeholders"]),
                "constants": len(told["constants"]),
                "mutated": len(told["mutated_input_idxs"]),
                "is_backward": told["is_backward"],
            }
        )
        return model

    def choose(self, cache: Any, name: str, choices: Any, inputs: Any, layout: Any, *args: Any, **kwargs: Any) -> Any:
        """Of the choices of max_autotune the first template, so that there is code of one."""
        shapes = ["x".join(map(str, node.get_size())) for node in inputs]
        self.record.tuned.add((name, *shapes, *sorted(choice.description for choice in choices)))
        templates = [choice for choice in choices if isinstance(choice, TritonTemplateCaller)]
        chosen = (templates or choices)[0]
        return chosen.output_node(), chosen

    def installed(self) -> contextlib.ExitStack:
        guards = torch._C._dynamo.guards
        stack = contextlib.ExitStack()
        for owner, name, value in (
            (AsyncCompile, "triton", lambda _, *args, **kwargs: self.kernel(*args, **kwargs)),
            (guards, "_empty_strided_cuda", self.empty),
            (guards, "_reinterpret_tensor", self.reinterpret),
            (guards, "copy_if_misaligned", self.copy_if_misaligned),
            (torch._C, "_cuda_getCurrentRawStream", self.stream),
            (torch.cuda, "_DeviceGuard", self.guard),
            (torch.cuda, "set_device", lambda index: None),
            (torch._inductor.compile_fx, "cudagraphify", self.graph),
            (AlgorithmSelectorCache, "__call__", lambda *args, **kwargs: self.choose(*args, **kwargs)),
            (UniformValueConstantFolder, "_deduce_value", _deduce_on_cpu),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        return stack


class _Guard:
    def __init__(self, device: _Device) -> None:
        self.device = device

    def __enter__(self) -> None:
        self.device.guarded += 1

    def __exit__(self, *_: object) -> None:
        self.device.guarded -= 1


class _Launcher:
    """Stands for a compiled Triton kernel."""

    def __init__(self, device: _Device, kernel: Kernel) -> None:
        self.device, self.kernel = device, kernel

    def run(self, *args: Any, stream: int, **kwargs: Any) -> None:
        record, name = self.device.record, self.kernel.name
        record.launches[self.kernel.content] += 1
        if not self.device.guarded:
            record.wrong.append(f"{name} outside of the device guard")
        if stream != STREAM:
            record.wrong.append(f"{name} on the stream {stream}")
        for index in self.kernel.aligned:
            argument = args[index] if index < len(args) else 0
            if isinstance(argument, torch.Tensor):
                argument = argument.storage_offset() * argument.element_size()
            if argument % ALIGNMENT:
                record.wrong.append(f"{name}: argument {index} is not aligned")


def compile_kernel(kernel: Kernel, configurations: int = 1) -> int:
    """Compiles a kernel as Inductor does, in its first configurations, by Triton and ptxas; how many there were."""
    with torch._inductor.config.patch(use_static_triton_launcher=False):  # which keeps nothing but the machine code
        tuner = _load_triton_kernel_from_source(kernel.name, kernel.source)
        tuner.configs = tuner.configs[:configurations]
        tuner.precompile(warm_cache_only=True)
    codes = [result.kernel.asm for result in tuner.compile_results]
    assert codes and all(code["cubin"] and ".target sm_90" in code["ptx"] for code in codes)
    return len(codes)


def compiled(function: Any, device: _Device, dynamic: bool | None = None, **options: Any) -> Any:
    """``function`` compiled by Inductor; its wrappers run on ``device``."""

    def inner_compile(graph: Any, inputs: Any, **how: Any) -> Any:
        run = compile_fx_inner(graph, inputs, **how)

        def step(args: list[Any]) -> Any:
            device.running = True
            try:
                with _Operators(device):  # not outside of it: Dynamo compiles nothing under a mode of the program's
                    return run(args)
            finally:
                device.running = False

        step._boxed_call = True  # type: ignore[attr-defined]
        return step

    def backend(graph: Any, inputs: Any) -> Any:
        return compile_fx(graph, inputs, inner_compile=inner_compile, config_patches=options or None)

    return torch.compile(function, backend=backend, dynamic=dynamic)


def on_cuda(value: Any, mode: FakeTensorMode, dtype: torch.dtype | None = None) -> Any:
    """A fake CUDA tensor of the same metadata; a module with those in place of its own."""
    if isinstance(value, torch.nn.Module):
        for module in value.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        table[name] = on_cuda(tensor, mode, dtype)
        return value
    if not isinstance(value, torch.Tensor):
        return value
    kept = dtype if dtype is not None and value.is_floating_point() else value.dtype
    with mode:
        fake = torch.empty_strided(value.size(), value.stride(), dtype=kept, device="cuda")
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(fake, requires_grad=value.requires_grad)
    return fake.requires_grad_(value.requires_grad)


def move_example(example: Any, mode: FakeTensorMode, dtype: torch.dtype | None = None) -> None:
    """The same for an example of the zoo, whose call closes over its inputs."""
    known: dict[int, Any] = {}

    def move(value: Any) -> Any:
        return known.setdefault(id(value), on_cuda(value, mode, dtype))

    move(example.model)
    for cell in example.call.__closure__ or ():
        if not isinstance(cell.cell_contents, torch.nn.Module):
            cell.cell_contents = tree_map(move, cell.cell_contents)


def bodies(wrapper: str) -> int:
    """How many bodies of regions a wrapper defines."""
    return len(re.findall(r"^def \w*subgraph\w*\(args\)", wrapper, re.MULTILINE))


def crossings(wrapper: str) -> int:
    """The buffers that a wrapper makes for calls of bodies, and those that bodies return to it."""
    operands, results, calls = set(), set(), set()
    for line in wrapper.splitlines():
        if re.search(r"subgraph\w*_args = \[", line):
            operands.update(re.findall(r"\b\w*buf\d+\b", line.split("= ", 1)[1]))
        elif call := re.search(r"(\w+) = \w*subgraph\w*\(", line):
            calls.add(call[1])
        elif (result := re.search(r"(\w+) = (\w+)\[\d+\]$", line)) and result[2] in calls:
            results.add(result[1])
    return len(operands | results)


def run_step(
    model: Any,
    call: Callable[[Any], Any],
    *,
    training: bool,
    flag: bool,
    mode: FakeTensorMode,
    dynamic: bool | None = None,
    options: dict[str, Any] | None = None,
) -> Record:
    """Compiles ``model``, runs a step of it, and says what happened."""
    torch._dynamo.reset()
    record = Record()
    device = _Device(record)
    load = PyCodeCache.load_by_key_path.__func__

    def noting(cls: Any, key: str, path: str, *args: Any, **kwargs: Any) -> Any:
        with open(path) as file:
            text = file.read()
        if "async_compile" in text and text not in record.wrappers:
            record.wrappers.append(text)
            record.defined.append([])
        return load(cls, key, path, *args, **kwargs)

    with (
        torch._dynamo.config.patch(use_graph_deduplication=flag),
        torch._inductor.config.patch(compile_threads=1, force_disable_caches=True, shape_padding=False),
        device.installed(),
        mock.patch.object(PyCodeCache, "load_by_key_path", classmethod(noting)),
        mode,
        contextlib.nullcontext() if training else torch.no_grad(),
    ):
        for tensor in tree_leaves([list(model.parameters()), list(model.buffers())]):
            device.memory.add(tensor)
        result = call(compiled(model, device, dynamic, **(options or {})))
        if training:
            result.sum().backward()
    for parameter in model.parameters():
        parameter.grad = None
    record.peak = device.memory.peak
    return record
