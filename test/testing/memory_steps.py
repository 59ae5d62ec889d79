"""Training steps of a small program, compiled and in eager: what can be seen of its memory, and its code."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
from torch._inductor.utils import run_and_get_code
from torch.utils._pytree import tree_leaves


def leaf(*size: int, grad: bool = True) -> torch.Tensor:
    return torch.randn(*size, requires_grad=grad)


def steps(function: Any, args: list[torch.Tensor], n: int = 3) -> list[Any]:
    record = []
    for step in range(n):
        for a in args:
            a.grad = None
        torch.manual_seed(step)
        out = [t for t in tree_leaves(function(*args)) if isinstance(t, torch.Tensor)]
        before = [t.detach().clone() for t in out]
        differentiable = [t for t in out if t.requires_grad]
        if differentiable:
            sum((t * t * (i + 1)).sum() for i, t in enumerate(differentiable)).backward()
        record.append(
            {
                "results": before,
                "results after the backward": [t.detach().clone() for t in out],
                "requires_grad": [torch.tensor(t.requires_grad) for t in out],
                "the user's tensors": [a.detach().clone() for a in args],
                "gradients": [torch.zeros(()) if a.grad is None else a.grad.clone() for a in args],
            }
        )
    return record


def check(function: Any, *args: torch.Tensor, backend: str = "inductor") -> None:
    torch._dynamo.reset()
    first = [a.detach().clone() for a in args]
    expected = steps(function, list(args))
    with torch.no_grad():
        for a, b in zip(args, first):
            a.copy_(b)
    found = steps(torch.compile(function, backend=backend, fullgraph=True), list(args))
    for step, (a, b) in enumerate(zip(expected, found)):
        for what in a:
            for x, y in zip(a[what], b[what], strict=True):
                torch.testing.assert_close(y, x, rtol=1e-4, atol=1e-4, msg=lambda m: f"step {step}, {what}: {m}")


def code_of(function: Any, *args: torch.Tensor) -> str:
    torch._dynamo.reset()

    def step() -> None:
        out = torch.compile(function, fullgraph=True)(*args)
        if out.requires_grad:
            out.sum().backward()

    _, codes = run_and_get_code(step)
    return "\n".join(codes)
