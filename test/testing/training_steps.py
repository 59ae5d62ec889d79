"""A training step of a small model, flat or with the flag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo


def train(build: Callable[[], torch.nn.Module], x: torch.Tensor, backend: Any, flag: bool, steps: int = 1) -> list[Any]:
    """The last result, and the gradients and buffers after ``steps`` on a copy of ``x`` that requires grad."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = build(), x.clone().requires_grad_()
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        compiled = torch.compile(model, backend=backend)
        for _ in range(steps):
            result = compiled(x)
            result.square().sum().backward()
    return [result.detach(), x.grad, *(p.grad for p in model.parameters()), *model.buffers()]
