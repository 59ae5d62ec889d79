"""What a call of a region saves for its backward.

Note [A call saves what it took]
The graph may write to an operand of a call right behind the call: Note [A body writes to a copy]. Autograd refuses to
give a saved tensor to the backward that has been written to since. The backward is traced from all operands of the
call, so such an operand is saved, too, although the backward needs none of its values. What is saved is therefore
another functional tensor of the same value. It costs no operator, where a copy is one that is traced again and again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.region_metadata import COPIED
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import GraphModule


def save_what_was_taken(ctx: Any, body: Any, operands: tuple[Any, ...]) -> None:
    """Saves ``operands`` anew in ``ctx`` if the frame's graph writes to one of them behind the call of ``body``."""
    copied = body.meta.get(COPIED) if isinstance(body, GraphModule) else None
    if copied:
        taken = [_apart(operand) if k in copied else operand for k, operand in enumerate(operands)]
        ctx.save_for_backward(*(operand for operand in taken if isinstance(operand, torch.Tensor)))


def _apart(operand: torch.Tensor) -> torch.Tensor:
    """The value of ``operand``, which no later write to ``operand`` changes."""
    if isinstance(operand, FunctionalTensor):
        return FunctionalTensor.to_functional(operand.from_functional())
    return operand.clone()
