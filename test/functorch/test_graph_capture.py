"""A detached fake input is what ``detach()`` makes of it."""

import pytest
import torch
from torch._functorch._aot_autograd.graph_capture import _detach_and_copy_item_memo
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torch_regions.overlay import stock


@pytest.fixture(autouse=True)
def _with_regions(with_regions):
    """What is tested here runs while a program with regions is compiled."""


def _seen(t, of):
    return (
        type(t),
        t.shape,
        t.stride(),
        t.storage_offset(),
        t.dtype,
        t.device,
        t.requires_grad,
        t.is_leaf,
        t._is_view(),
        t._version,
        t.untyped_storage()._cdata == of.untyped_storage()._cdata,
        t.fake_mode is of.fake_mode,
        t.item_memo,
    )


@pytest.mark.parametrize("entered", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.Parameter(torch.randn(3, 4)),
        lambda: torch.randn(3, 4).t(),
        lambda: torch.randn(12)[4:],
        lambda: torch.tensor(3),
        lambda: torch.randn(3, 4, dtype=torch.complex64).conj(),
    ],
    ids="parameter transposed part scalar conj".split(),
)
def test_as_stock(make, entered):
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fake = mode.from_tensor(make())
    if fake.dim() == 0:
        fake.item_memo = mode.shape_env.create_unbacked_symint()
    detach = stock("torch._functorch._aot_autograd.graph_capture:_detach_and_copy_item_memo")
    if entered:
        with mode:
            ours, theirs = _detach_and_copy_item_memo(fake), detach(fake)
    else:
        ours, theirs = _detach_and_copy_item_memo(fake), detach(fake)
    assert isinstance(ours, FakeTensor)
    assert ours is not fake
    assert str(_seen(ours, fake)) == str(_seen(theirs, fake))


def test_a_tensor_that_is_not_fake_goes_stocks_way():
    t = torch.randn(3, requires_grad=True)
    detached = _detach_and_copy_item_memo(t)
    assert not detached.requires_grad and detached.data_ptr() == t.data_ptr()
