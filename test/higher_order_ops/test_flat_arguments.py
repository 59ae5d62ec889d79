"""The arguments of an operator that are flat are those that flattening them gives."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
import torch._dynamo

from torch_regions.overlay import stock


Pair = namedtuple("Pair", "one other")


@pytest.mark.parametrize(
    "args",
    [(1, "a", None), (), ([1, 2], 3), ((1, 2),), (Pair(1, 2), 3), (torch.Size([2, 3]),), ({"a": 1},)],
    ids=repr,
)
def test_flat_arguments_of_an_operator_are_what_stock_flattens(args):
    by_stock = stock("torch._ops:_to_flat_tuple")
    assert list(torch._ops._to_flat_tuple(args, {})) == list(by_stock(args, {}))
    assert list(torch._ops._to_flat_tuple(args, {"key": [4]})) == list(by_stock(args, {"key": [4]}))
