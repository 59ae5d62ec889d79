"""Ten training steps in a row on Inductor: with the flag as without it, and nothing of the user's is written to."""

import pytest
import torch
import torch._dynamo
from testing.cases import some
from testing.models import copies, start, state, unchanged
from torch._dynamo.utils import counters

from benchmarks.zoo_more import ALL, build


STEPS = 10
LAYERS = 3
# By default those whose bodies save most for the backward, and train with buffers of their own.
BY_DEFAULT = ["llama", "encoder"]


def _user_tensors(example):
    """What the user gives to the model; gradients are asked for where there can be any."""
    for tensor in example.inputs:
        tensor.requires_grad_(tensor.is_floating_point())
    return list(example.inputs)


def _train(name, flag):
    """What can be seen of the steps. What the user holds is looked at after each backward."""
    start()
    example = build(name, LAYERS)
    model, given, results = example.model, _user_tensors(example), []
    called = torch.compile(model, backend="inductor")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    seen = []
    with torch._dynamo.config.patch(use_graph_deduplication=flag):
        for step in range(STEPS):
            torch.manual_seed(step)
            optimizer.zero_grad(set_to_none=True)
            for tensor in given:
                tensor.grad = None
            held = [*model.parameters(), *given, *(r for r, _ in results)]
            before = copies(held)
            out = example.call(called)
            results.append((out, out.detach().clone()))
            out.float().pow(2).mean().backward()
            unchanged(held, before)
            unchanged([r for r, _ in results], [r for _, r in results])
            grads = [None if t.grad is None else t.grad.clone() for t in given]
            seen.append([results[-1][1], state(model), grads, torch.get_rng_state()])
            optimizer.step()
    return seen


@pytest.mark.parametrize("name", some(ALL, BY_DEFAULT))
def test_ten_steps_on_inductor_as_without_the_flag(name):
    wanted, got = _train(name, False), _train(name, True)
    for step, (one, other) in enumerate(zip(wanted, got, strict=True)):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4, msg=lambda m, step=step: f"step {step}: {m}")
    if name in BY_DEFAULT:
        assert counters["graph_deduplication"]["calls"] + counters["regions"]["reused"] >= 2
