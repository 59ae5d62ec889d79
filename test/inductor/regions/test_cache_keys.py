"""The key of a body: one for one meaning, and another one for each other meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from testing.body_keys import key
from torch._inductor import config
from torch._inductor.compiler_bisector import CompilerBisector
from torch._inductor.regions.cache_devices import devices_of, hardware, is_cached_for
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses.fake_tensor import FakeTensorMode


F = torch.nn.functional


def inputs(dtype: torch.dtype = torch.float32, **options: Any) -> tuple[torch.Tensor, ...]:
    return torch.ones(4, 8, dtype=dtype, **options), torch.ones(8, 8, dtype=dtype, **options)


def base(x, w):
    return F.gelu(x @ w) * 2.0 + x


def renamed(left, right):
    product = left @ right
    activated = F.gelu(product)
    return activated * 2.0 + left


def reordered(x, w):
    unused = x * 7
    del unused
    y = x @ w
    return F.gelu(y) * 2.0 + x


@pytest.mark.parametrize("other", [renamed, reordered], ids=lambda f: f.__name__)
def test_same_meaning(other):
    assert key(other, *inputs()) == key(base, *inputs())


def test_same_body_elsewhere():
    """Neither what else a process has compiled nor other values of the operands count."""
    found = key(base, *inputs())
    key(lambda x, w: base(x, w).sin(), *inputs())
    assert key(base, *(2 * x for x in inputs())) == found


MUTATIONS: dict[str, Callable[..., Any]] = {
    "constant": lambda x, w: F.gelu(x @ w) * 3.0 + x,
    "type of a constant": lambda x, w: F.gelu(x @ w) * 2 + x,
    "sign of zero": lambda x, w: F.gelu(x @ w) * -0.0 + x,
    "operator": lambda x, w: F.silu(x @ w) * 2.0 + x,
    "variant of an operator": lambda x, w: F.gelu(x @ w, approximate="tanh") * 2.0 + x,
    "operand": lambda x, w: F.gelu(x @ w) * 2.0 + (x @ w),
    "order of operands": lambda x, w: F.gelu(w[:4] @ x.T @ x) * 2.0 + x,
    "difference for a sum": lambda x, w: F.gelu(x @ w) * 2.0 - x,
    "swapped difference": lambda x, w: x - F.gelu(x @ w) * 2.0,
    "one more operator": lambda x, w: (F.gelu(x @ w) * 2.0 + x).neg(),
    "one more result": lambda x, w: (F.gelu(x @ w) * 2.0 + x, x @ w),
    "order of results": lambda x, w: (x @ w, F.gelu(x @ w) * 2.0 + x),
    "dtype inside": lambda x, w: (F.gelu(x @ w).double() * 2.0).float() + x,
    "dimension": lambda x, w: F.gelu(x @ w) * 2.0 + x.mean(0, keepdim=True),
    "other dimension": lambda x, w: F.gelu(x @ w) * 2.0 + x.mean(1, keepdim=True),
    "part of an operand": lambda x, w: F.gelu(x @ w) * 2.0 + x[:1],
    "other part": lambda x, w: F.gelu(x @ w) * 2.0 + x[1:2],
    "shape of a result": lambda x, w: (F.gelu(x @ w) * 2.0 + x).sum(0),
    "layout of a result": lambda x, w: (F.gelu(x @ w) * 2.0 + x).t().contiguous().t(),
}


def test_mutations():
    """Each is another body, and no two of them are the same."""
    keys = {name: key(body, *inputs()) for name, body in {"base": base, **MUTATIONS}.items()}
    assert all(len(found) == 64 for found in keys.values()), keys
    assert len(set(keys.values())) == len(keys)


OPERANDS: dict[str, tuple[torch.Tensor, ...]] = {
    "dtype": inputs(torch.float64),
    "size": (torch.ones(5, 8), torch.ones(8, 8)),
    "stride": (torch.ones(4, 8), torch.ones(8, 8).t()),
    "requires grad": inputs(requires_grad=True),
    "offset": (torch.ones(4, 8), torch.ones(65)[1:].view(8, 8)),
}


def test_operands():
    keys = {name: key(base, *operands) for name, operands in {"base": inputs(), **OPERANDS}.items()}
    assert all(len(found) == 64 for found in keys.values()), keys
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize(
    "options",
    [
        {"cpp.simdlen": 0},
        {"cpp.threads": 3},
        {"cpp.enable_floating_point_contract_flag": "fast"},
        {"inplace_buffers": False},
        {"max_fusion_size": 1},
        {"size_asserts": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options(options):
    found = key(base, *inputs())
    with config.patch(options):
        changed = key(base, *inputs())
    assert len(changed) == 64 and changed != found
    assert key(base, *inputs()) == found


def test_state():
    """What lowering reads of the process."""
    found = key(base, *inputs())
    threads = torch.get_num_threads()
    seen = {found}
    try:
        torch.set_num_threads(threads + 1)
        seen.add(key(base, *inputs()))
    finally:
        torch.set_num_threads(threads)
    try:
        torch.use_deterministic_algorithms(True)
        seen.add(key(base, *inputs()))
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.backends.mkldnn.flags(enabled=False):
        seen.add(key(base, *inputs()))
    with torch.no_grad():
        assert key(base, *inputs()) == found
    assert len(seen) == 4
    assert key(base, *inputs()) == found


@torch.library.custom_op("region_cache_keys::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@tripled.register_fake
def _(x):
    return torch.empty_like(x)


def inner(x, w):
    @torch.compiler.nested_compile_region
    def part(x):
        return (x * 2).sin().cos() + x

    return part(part(x)) @ w


def test_left_as_they_are():
    """Bodies that have no key, each for its reason."""
    assert key(lambda x, w: tripled(x @ w), *inputs()) == "OPERATOR"
    assert key(inner, *inputs()) == "ATTRIBUTE"
    with config.patch(max_autotune=True):
        assert key(base, *inputs()) == "AUTOTUNED"
    for name in ("benchmark_fusion", "benchmark_combo_kernel"):
        with config.patch({name: True}):
            assert key(base, *inputs()) == "AUTOTUNED"
    with config.patch(fx_graph_cache=False):
        assert key(base, *inputs()) == "OFF"
    with config.patch(force_disable_caches=True):
        assert key(base, *inputs()) == "OFF"
    # A function has no key. Stock keeps no graph that such a pass has changed.
    for name in ("_pre_fusion_custom_pass", "_post_fusion_custom_pass", "post_grad_custom_post_pass"):
        with config.patch({name: lambda nodes: nodes}):
            assert key(base, *inputs()) == "STOCK"
    with patch.object(CompilerBisector, "bisection_enabled", True):
        assert key(base, *inputs()) == "STOCK"
    with config.patch({"trace.provenance_tracking_level": 1}):
        assert key(base, *inputs()) == "RECORDED"


def test_lowering_of_the_users():
    from torch._inductor.lowering import lowerings, user_lowerings

    gelu = torch.ops.aten.mm.default
    user_lowerings[gelu] = lowerings[gelu]
    try:
        assert key(base, *inputs()) == "LOWERING"
    finally:
        del user_lowerings[gelu]


def test_code_generator_of_the_users():
    from torch._inductor.codegen import common
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    class Wrapper(PythonWrapperCodegen):
        pass

    common.init_backend_registration()
    stock = common.device_codegens["cpu"]
    common.register_backend_for_device("cpu", stock.scheduling, Wrapper)
    try:
        assert key(base, *inputs()) == "BACKEND"
    finally:
        common.device_codegens["cpu"] = stock


def on(device: str) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(2, device=device)


@pytest.mark.parametrize(
    "devices, is_kept",
    [
        (["cpu", "cpu"], True),
        (["cuda:0", "cuda:0"], True),
        (["cuda:0", "cpu"], False),
        (["cuda:0", "cuda:1"], False),
        (["meta"], False),
        ([], False),
    ],
    ids=str,
)
def test_a_body_is_kept_that_is_on_one_device(devices, is_kept):
    """Results of an operator with several are looked into; sizes do not count."""
    tensors = [on(device) for device in devices]
    found = devices_of([*tensors[:1], (tensors[1:], 7), None])
    assert found == {*map(torch.device, devices)} and is_cached_for(found) is is_kept


def test_code_for_one_gpu_is_not_that_for_another():
    device = torch.device("cuda", 0)
    one = DeviceProperties("cuda", 0, 132, 90, major=9)
    found = []
    for properties in (one, one, one._replace(cc=80, major=8), one._replace(multi_processor_count=108)):
        with patch.object(DeviceProperties, "create", lambda _, given=properties: given):
            found.append(str(hardware(device)))
    assert found[0] == found[1] and len(set(found)) == 3
    assert str(hardware(torch.device("cpu"))) not in found
