"""A fake tensor that is made functional says where it is without being dispatched."""

import pytest
import torch
import torch._higher_order_ops.effects
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode


@pytest.fixture(autouse=True)
def _with_regions(with_regions):
    """What is tested here runs while a program with regions is compiled."""


DEVICE = torch.ops.prim.device.default


def _fake(mode, device):
    with in_kernel_invocation_manager(mode):
        return FakeTensor(mode, torch.empty(2, 3, device="meta"), torch.device(device))


@pytest.mark.parametrize("device", ["cpu", "xla:0"])
def test_a_functional_tensor_is_where_its_fake_is(device):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, FunctionalTensorMode():
        made = FunctionalTensor.to_functional(_fake(mode, device))
        assert made.device == torch.device(device)
        assert made.from_functional().device == torch.device(device)


def test_in_a_kernel_it_is_on_meta():
    mode = FakeTensorMode()
    fake, functional = _fake(mode, "cpu"), FunctionalTensorMode()
    assert functional.__torch_dispatch__(DEVICE, (FakeTensor,), (fake,)) == torch.device("cpu")
    mode.in_kernel_invocation = True
    assert functional.__torch_dispatch__(DEVICE, (FakeTensor,), (fake,)) == torch.device("meta")


def test_a_tensor_that_is_not_fake_is_asked_as_before():
    with FunctionalTensorMode() as functional:
        assert FunctionalTensor.to_functional(torch.ones(2)).device == torch.device("cpu")
        made = functional.__torch_dispatch__(DEVICE, (torch.Tensor,), (torch.ones(2, device="meta"),))
        assert made == torch.device("meta")
