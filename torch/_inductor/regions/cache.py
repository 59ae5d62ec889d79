"""Caches compiled bodies of regions beside FxGraphCache's entries, under keys of their own.

A new program around a known body then compiles only what is new. An entry is text and numbers: the code of the body
(see Note [A body is an object file]) and the data about its memory that its callers need. A body is cached only if its
callers need nothing else, and if its key contains everything that its lowering reads. Every other body is lowered as
without a cache, for a ``BypassReason`` that is logged.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import json
import logging
import operator
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch._higher_order_ops.region_autocast import WITHOUT_AUTOCAST
from torch._inductor import config, ir
from torch._inductor.codecache import (
    BypassFxGraphCache,
    CacheabilityValidator,
    FxGraphCachePickler,
    FxGraphHashDetails,
    write_atomic,
)
from torch._inductor.lowering import lowerings
from torch._inductor.regions.cache_devices import devices_of, hardware, has_stock_generator, is_cached_for
from torch._inductor.regions.memory import RegionMemory, RegionOutput
from torch._inductor.regions.object_code import HEADERS, BodyCode, Kernel
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.operator_facts import NAMESPACES_OF_TORCH


log = logging.getLogger(__name__)

FOLDER = "regions"
# Lowerings of each operator when Inductor is imported; no key contains those that a program replaces later.
_LOWERINGS = {target: lower for target, lower in lowerings.items() if isinstance(target, OpOverload)}


class BypassReason(enum.Enum):
    """Why a body is lowered without a lookup, or not cached."""

    OFF = "caches are off"
    STOCK = "FxGraphCache would not keep a graph here"
    WRAPPER = "another wrapper than Python's is written"
    DEVICE = "it is not on one device, or on another than a CPU or a CUDA GPU"
    BACKEND = "another code generator than stock's is registered for its device"
    SYMBOLIC_SIZES = "its sizes depend on data, or it asks what cannot be kept"
    RUNTIME_ASSERTS = "the program has assertions on sizes that a body may have to make"
    AUTOTUNED = "its kernels are chosen by measuring"
    RECORDED = "where its kernels come from is being recorded"
    ATTRIBUTE = "it has a constant, or a body in it"
    OPERATOR = "it calls something else than an operator of torch's"
    LOWERING = "an operator has a lowering of the user's, or lowerings were replaced by hand"
    VALUE = "a value in it is no plain tensor"
    UNKEYABLE = "something in it has no key"
    CONSTANT = "lowering made a constant"
    EFFECT = "it has an effect"
    NODE = "lowering made a node that is not known to depend on the body only"
    RESULT = "a result is no tensor"
    CODE = "its code cannot be told apart from a program's"


class BodyBypass(Exception):
    """A body is not cached."""

    def __init__(self, reason: BypassReason, detail: object = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason


# What goes wrong without each part of the key. Parts with the names of stock's fields are described in
# torch._functorch._aot_autograd.autograd_cache_parts.
PARTS: dict[str, str] = {
    "graph": "another body's code would run",
    "operands": "code for other shapes, strides, offsets or dtypes would run",
    "kind": "buffers would be kept or reused by the rules of a graph of another kind",
    "device": "code for another device would run",
    "hardware": "kernels would be made for another CPU's vectors, or for another GPU",
    "threads": "loops would be split for another number of threads",
    "ambient": "kernels would be chosen for other precision or determinism",
    "default_device": "factories would make tensors on another device",
    "matmul": "products would be made by another library",
    "symbols": "code for sizes with another range, or of another relation to each other, would run",
}
# Fields of stock's details that the parts above replace.
_STOOD_FOR = frozenset({"gm", "example_inputs", "fx_kwargs"})
# Metadata that gives the origin of a node or follows from other metadata. It gets into comments and names of kernels.
_META_IGNORED = frozenset(
    (
        "stack_trace",
        "output_stack_traces",
        "nn_module_stack",
        "fwd_nn_module_stack",
        "source_fn_stack",
        "fwd_source_fn_stack",
        "from_node",
        "original_aten",
        "seq_nr",
        "torch_fn",
        "tensor_meta",
    )
)
# Likewise for a body's graph module. A traced graph contains all casts, whether or not that is noted.
_MODULE_META_IGNORED = frozenset(
    {"dynamo_flat_name_to_original_fqn", "dynamo_compile_id", "backend_id", WITHOUT_AUTOCAST}
)
# What a traced graph computes of sizes, other than by operators.
_ON_SIZES = frozenset({operator.add, operator.floordiv, operator.mod, operator.mul, operator.neg, operator.sub})
# IR nodes that lowering makes of operators that only compute from tensors and numbers.
_NODES = frozenset(
    (
        ir.ComputedBuffer,
        ir.ConcatKernel,
        ir.ExternKernelAlloc,
        ir.ExternKernelOut,
        ir.FallbackKernel,
        ir.IndexPutFallback,
        ir.MultiOutput,
        ir.MutationOutput,
        ir.ScatterFallback,
    )
)


def key_of(gm: GraphModule, examples: Sequence[Any], around: Any, symbols: Any) -> str:
    """The key of a body to be lowered for the graph ``around``, whose ``symbols`` it numbers. Raises ``BodyBypass``."""
    _check_surroundings(around)
    try:
        CacheabilityValidator(gm, examples, require_shape_env=False).validate()
    except BypassFxGraphCache as error:
        raise BodyBypass(BypassReason.STOCK, error) from error
    if unknown := gm.meta.keys() - _MODULE_META_IGNORED:
        raise BodyBypass(BypassReason.UNKEYABLE, f"metadata {sorted(unknown)}")
    for node in gm.graph.nodes:
        _check_node(node)
    devices = devices_of([*examples, *(node.meta.get("val") for node in gm.graph.nodes)])
    if not is_cached_for(devices):
        raise BodyBypass(BypassReason.DEVICE, ", ".join(sorted(map(str, devices))))
    (device,) = devices
    if not has_stock_generator(device):
        raise BodyBypass(BypassReason.BACKEND, device.type)
    try:
        return _key(gm, examples, around, symbols, device)
    except BodyBypass:
        raise
    except Exception as error:
        raise BodyBypass(BypassReason.UNKEYABLE, error) from error


def _key(gm: GraphModule, examples: Sequence[Any], around: Any, symbols: Any, device: torch.device) -> str:
    from torch._functorch._aot_autograd.autograd_cache_parts import KeyParts, plain_bytes
    from torch._functorch._aot_autograd.canonical_graph import CanonicalGraph
    from torch._inductor.utils import parallel_num_threads
    from torch.utils._ambient_state import ambient_state, global_state_key

    serialize = FxGraphCachePickler(gm).dumps
    graph = CanonicalGraph(gm, serialize, functools.partial(_described, symbols=symbols))
    parts = KeyParts()
    parts.add("graph", plain_bytes([graph.targets, graph.records]))
    parts.add("operands", plain_bytes([_value("", example, symbols) for example in examples]))
    parts.add("kind", plain_bytes([around.is_inference, around.is_backward]))
    parts.add("device", str(device).encode())
    parts.add("hardware", plain_bytes(hardware(device)))
    parts.add("threads", plain_bytes([torch.get_num_threads(), parallel_num_threads()]))
    parts.add("ambient", serialize([torch.is_inference_mode_enabled(), *ambient_state(global_state_key())]))
    parts.add("default_device", str(torch.get_default_device()).encode())
    parts.add("matmul", plain_bytes([torch.backends.mkldnn.enabled, torch.backends.mkldnn.is_available()]))
    parts.add("symbols", plain_bytes(symbols.facts()))
    for name, value in vars(FxGraphHashDetails(None, examples, {}, [])).items():
        if name not in _STOOD_FOR:
            parts.add(name, serialize(value))
    return hashlib.sha256(parts.text().encode()).hexdigest()


def _check_surroundings(around: Any) -> None:
    if config.force_disable_caches or not config.fx_graph_cache:
        raise BodyBypass(BypassReason.OFF)
    if around.cpp_wrapper or around.fx_wrapper or around.aot_mode or around.is_const_graph:
        raise BodyBypass(BypassReason.WRAPPER)
    if around._shape_env.deferred_runtime_asserts:
        raise BodyBypass(BypassReason.RUNTIME_ASSERTS)
    tuned = (config.max_autotune, config.max_autotune_gemm, config.max_autotune_pointwise)
    if any((*tuned, config.benchmark_fusion, config.benchmark_combo_kernel)):
        raise BodyBypass(BypassReason.AUTOTUNED)
    if config.trace.enabled or config.trace.provenance_tracking_level:
        raise BodyBypass(BypassReason.RECORDED)
    # One operator's lowering may call any other.
    if replaced := next((target for target, lower in _LOWERINGS.items() if lowerings.get(target) is not lower), None):
        raise BodyBypass(BypassReason.LOWERING, replaced)


def _check_node(node: Node) -> None:
    from torch._inductor.lowering import user_lowerings

    if node.op in ("placeholder", "output"):
        return
    if node.op == "get_attr":
        raise BodyBypass(BypassReason.ATTRIBUTE, node.target)
    target = node.target
    if target is operator.getitem or (target in _ON_SIZES and isinstance(node.meta.get("val"), (int, torch.SymInt))):
        return
    if not isinstance(target, OpOverload) or target.namespace not in NAMESPACES_OF_TORCH:
        raise BodyBypass(BypassReason.OPERATOR, target)
    if target in user_lowerings:
        raise BodyBypass(BypassReason.LOWERING, target)


def _described(node: Node, symbols: Any) -> Any:
    """All metadata of a node that lowering may read."""
    # An output node may lack a value; the nodes that it returns have theirs.
    ignored = _META_IGNORED | {"val"} if node.op == "output" else _META_IGNORED
    return [(name, _value(name, value, symbols)) for name, value in sorted(node.meta.items()) if name not in ignored]


def _value(name: str, value: Any, symbols: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _tensor(value, symbols)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [_value(name, item, symbols) for item in value])
    if isinstance(value, dict):
        return ("dict", [(_value(name, k, symbols), _value(name, v, symbols)) for k, v in value.items()])
    if name == "desc" and value is not None:
        # The class says whether a result is saved for the backward; its name does not matter.
        return type(value).__name__
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return ("size", symbols.text(value))
    if value is None or type(value) in (bool, int, float, str):
        return (type(value).__name__, value)
    raise BodyBypass(BypassReason.UNKEYABLE, f"metadata {name} of type {type(value).__name__}")


def _tensor(value: Any, symbols: Any) -> Any:
    if type(value) is not FakeTensor or value.layout is not torch.strided or value.is_quantized:
        raise BodyBypass(BypassReason.VALUE, type(value).__name__)
    numbers = tuple(map(symbols.text, (*value.shape, *value.stride(), value.storage_offset())))
    flags = (value.requires_grad, value.is_conj(), value.is_neg(), value._is_view(), value.is_pinned())
    return (str(value.dtype), value.dim(), numbers, flags)


def check_lowered(graph: Any, memory: RegionMemory) -> None:
    """Raises ``BodyBypass`` if lowering made anything that is neither in the code nor in ``memory``."""
    if graph.constants or graph.torchbind_constants or graph.constant_reprs or graph.opaque_value_type_classes:
        raise BodyBypass(BypassReason.CONSTANT)
    if graph.effectful_ops:
        raise BodyBypass(BypassReason.EFFECT)
    if graph.bound_unbacked_symbols:
        raise BodyBypass(BypassReason.SYMBOLIC_SIZES)
    for node in graph.operations:
        if type(node) not in _NODES:
            raise BodyBypass(BypassReason.NODE, type(node).__name__)
    for output in memory.outputs:
        if output.layout is None and not isinstance(output.value, (ir.NoneAsConstantBuffer, ir.ShapeAsConstantBuffer)):
            raise BodyBypass(BypassReason.RESULT, type(output.value).__name__)


def _path(key: str) -> str:
    return os.path.join(cache_dir(), FOLDER, key[:2], key)


@dataclass
class CachedBody:
    """The cached data of a body."""

    memory: RegionMemory
    # Which operands the body may overwrite is known only when its calls have been ordered (regions/donation.py). Each
    # such choice has its own code, because other code would overwrite an operand that is still to be read.
    codes: dict[str, BodyCode]  # indices of donated operands, and what was learned of sizes since, to code
    guards: list[Any]  # that lowering the body makes: see cache_symbols.py


def described(memory: RegionMemory, symbols: Any) -> dict[str, Any]:
    """The data about a body's memory as numbers and text. Raises ``BodyBypass``."""
    outputs = [_plain_output(output, symbols) for output in memory.outputs]
    buffers = [_plain(buffer, symbols) for buffer in memory.buffers]
    return {"outputs": outputs, "buffers": buffers, "mutated": memory.mutated, "aligned": memory.aligned}


def save(key: str, body: CachedBody, symbols: Any) -> None:
    """Caches a body. Warns if the folder is not writable."""
    entry = {**described(body.memory, symbols), "guards": body.guards}
    codes = {donated: asdict(code) for donated, code in sorted(body.codes.items())}
    content = json.dumps({**entry, "codes": codes}).encode()
    try:
        write_atomic(_path(key), _digest(key, content) + b"\n" + content, make_dirs=True)
    except OSError as error:
        _say(_path(key), f"cannot be written: {error}")


def load(key: str, results: int, operands: int, symbols: Any) -> CachedBody | None:
    """The body cached under a key, with its layouts in ``symbols``, or None.

    An entry that is unreadable, has another key, or is for another number of results or operands counts as a miss; it
    is reported once and removed.
    """
    path = _path(key)
    try:
        with open(path, "rb") as file:
            digest, _, content = file.read().partition(b"\n")
        if _digest(key, content) != digest:
            raise ValueError("it is damaged, or of another key")
        entry = json.loads(content)
        outputs = [_output(output, symbols) for output in entry["outputs"]]
        buffers = [_layout(buffer, symbols) for buffer in entry["buffers"]]
        memory = RegionMemory(outputs, buffers, entry["mutated"], entry["aligned"])
        _check_memory(memory, results, operands)
        codes = {donated: _code(code) for donated, code in entry["codes"].items()}
        symbols.guard(entry["guards"])  # last: until here, the entry may turn out to be no use
        return CachedBody(memory, codes, entry["guards"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:
        _say(path, f"cannot be read, and is compiled anew: {type(error).__name__}: {error}")
        with contextlib.suppress(OSError):
            os.unlink(path)
        return None


def _digest(key: str, content: bytes) -> bytes:
    # The digest includes the key, so an entry that was moved or copied to another key does not match.
    return hashlib.sha256(key.encode() + b"\n" + content).hexdigest().encode()


def _check_memory(memory: RegionMemory, results: int, operands: int) -> None:
    """Raises ``ValueError`` if ``memory`` would make a call fail later, when no other body can be made."""
    if len(memory.outputs) != results:
        raise ValueError(f"it has {len(memory.outputs)} results, not {results}")
    indices = [(output.operand, operands) for output in memory.outputs if output.operand is not None]
    indices += [(output.buffer, len(memory.buffers)) for output in memory.outputs if output.buffer is not None]
    indices += [(index, operands) for index in (*memory.mutated, *memory.aligned)]
    if any(type(index) is not int or not 0 <= index < count for index, count in indices):
        raise ValueError("it refers to an operand or a buffer that is not there")
    if any((output.layout is None) != (output.operand is output.buffer is None) for output in memory.outputs):
        raise ValueError("a result has no memory")


def _code(plain: dict[str, Any]) -> BodyCode:
    kernels = [Kernel(**kernel) for kernel in plain["kernels"]]
    code = BodyCode(plain["before"], kernels, plain["after"], plain["guards"], plain["headers"])
    if not set(code.headers) <= set(HEADERS):
        raise ValueError(f"it asks for the headers {code.headers}")
    texts = [code.before, code.after, *(text for kernel in code.kernels for text in asdict(kernel).values())]
    if any(type(text) is not str for text in texts):
        raise ValueError("its code is no text")
    return code


_said: set[str] = set()


def _say(path: str, what: str) -> None:
    if path not in _said:
        _said.add(path)
        log.warning("cache entry %s %s", path, what)


def _plain(layout: ir.Layout, symbols: Any) -> list[Any]:
    numbers = [[*map(symbols.to_plain, layout.size)], [*map(symbols.to_plain, layout.stride)]]
    dtype = str(layout.dtype).removeprefix("torch.")
    return [str(layout.device), dtype, *numbers, symbols.to_plain(layout.offset), layout.is_pinned]


def _layout(plain: list[Any], symbols: Any) -> ir.FixedLayout:
    device, dtype, size, stride, offset, pinned = plain
    return ir.FixedLayout(
        device=torch.device(device),
        dtype=getattr(torch, dtype),
        size=[*map(symbols.from_plain, size)],
        stride=[*map(symbols.from_plain, stride)],
        offset=symbols.from_plain(offset),
        is_pinned=pinned,
    )


def _plain_output(output: RegionOutput, symbols: Any) -> dict[str, Any] | None:
    if output.layout is None:
        is_size = isinstance(output.value, ir.ShapeAsConstantBuffer)
        return {"size": symbols.to_plain(output.value.expr)} if is_size else None
    return {"buffer": output.buffer, "operand": output.operand, "layout": _plain(output.layout, symbols)}


def _output(plain: dict[str, Any] | None, symbols: Any) -> RegionOutput:
    if plain is None:
        return RegionOutput(value=ir.NoneAsConstantBuffer())
    if "size" in plain:
        return RegionOutput(value=ir.ShapeAsConstantBuffer(expr=symbols.from_plain(plain["size"])))
    return RegionOutput(buffer=plain["buffer"], operand=plain["operand"], layout=_layout(plain["layout"], symbols))
