"""A fake tensor that is made in one step is the one that stock makes."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch._dynamo
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConfig, FakeTensorMode
from torch._subclasses.plain_fake import plain_fake
from torch.fx.experimental.proxy_tensor import make_fx


@pytest.fixture(autouse=True)
def _with_regions(with_regions):
    """What is tested here runs while a program with regions is compiled."""


def _state(fake):
    return {
        **vars(fake),
        "keys": torch._C._dispatch_keys(fake).raw_repr(),
        "requires_grad": fake.requires_grad,
        "device": fake.device,
        "metadata": (fake.shape, fake.stride(), fake.storage_offset(), fake.dtype),
    }


@pytest.mark.parametrize("device", ["cpu", "xla:0", "cuda:1"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_it_is_what_stock_makes(device, requires_grad):
    mode, device = FakeTensorMode(), torch.device(device)
    meta = torch.empty(3, 4, device="meta").t().requires_grad_(requires_grad)
    expected = _state(FakeTensor(mode, meta, device))
    for _ in range(2):
        assert _state(plain_fake(mode, meta, device)) == expected


@pytest.mark.parametrize("allowed", [False, True])
def test_its_data_is_as_protected_as_in_stock(allowed):
    with torch._functorch.config.patch(fake_tensor_allow_unsafe_data_ptr_access=allowed):
        mode = FakeTensorMode()
    meta, device = torch.empty(2, device="meta"), torch.device("cpu")
    for make in (FakeTensor, plain_fake, plain_fake):
        fake = make(mode, meta, device)
        if allowed:
            assert fake.data_ptr() == 0
        else:
            with pytest.raises(RuntimeError, match="data pointer"):
                fake.data_ptr()


def test_what_is_no_meta_tensor_is_refused_as_in_stock():
    mode, device = FakeTensorMode(), torch.device("cpu")
    plain_fake(mode, torch.empty(2, device="meta"), device)
    with pytest.raises(AssertionError, match="meta"):
        plain_fake(mode, torch.empty(2), device)


def test_in_debug_mode_each_has_its_trace(monkeypatch):
    mode, meta, device = FakeTensorMode(), torch.empty(2, device="meta"), torch.device("cpu")
    plain_fake(mode, meta, device)
    monkeypatch.setattr(FakeTensorConfig, "debug", True)
    one, other = (plain_fake(mode, meta, device) for _ in range(2))
    assert one._debug_trace is not other._debug_trace
    monkeypatch.setattr(FakeTensorConfig, "debug", False)
    assert not hasattr(plain_fake(mode, meta, device), "_debug_trace")


def test_a_mode_is_not_kept_alive():
    mode = FakeTensorMode()
    fake = plain_fake(mode, torch.empty(2, device="meta"), torch.device("cpu"))
    gone = weakref.ref(mode)
    del mode, fake
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("tracing", ["fake", "symbolic"])
def test_a_trace_notes_what_stock_notes(tracing):
    """Sizes that are symbols are tracked one by one, others not at all."""

    def program(x, y):
        return (x.t() @ y).view(-1, x.shape[0]).sum(0), x.stride(0) + y

    traced = make_fx(program, tracing_mode=tracing)(torch.randn(3, 4), torch.randn(3, 6))
    values = [node.meta["val"] for node in traced.graph.nodes if node.op == "placeholder"]
    assert [v._has_symbolic_sizes_strides for v in values] == [tracing == "symbolic"] * 2
    assert all(node.meta["tensor_meta"].shape == node.meta["val"].shape for node in list(traced.graph.nodes)[:2])
    for sizes in ((3, 4, 6), (5, 2, 15)) if tracing == "symbolic" else ((3, 4, 6),):
        x, y = torch.randn(*sizes[:2]), torch.randn(sizes[0], sizes[2])
        torch.testing.assert_close(traced(x, y), program(x, y))
