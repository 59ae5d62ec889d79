"""What the tests of marked blocks share: train and infer, and compare what can be seen of it."""

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from benchmarks.zoo import build, mark_blocks


STEPS = 2


def state(model):
    """Copies of a model's gradients, parameters and buffers; no gradient counts as zero."""
    return {
        "gradients": {
            n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()
        },
        "parameters": {n: p.detach().clone() for n, p in model.named_parameters()},
        "buffers": {n: b.clone() for n, b in model.named_buffers()},
    }


def copies(tensors):
    return [t.detach().clone() for t in tensors]


def same(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)


def unchanged(tensors, before):
    for now, then in zip(tensors, before, strict=True):
        assert torch.equal(now.detach(), then)


def train(example, called, steps=STEPS):
    """What can be seen of some steps of SGD: outputs, gradients, parameters, buffers, random state."""
    model = example.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad(set_to_none=True)
        weights = list(model.parameters())
        before, inputs = copies(weights), copies(example.inputs)
        out = example.call(called)
        out.float().pow(2).mean().backward()
        unchanged(weights, before)
        unchanged(example.inputs, inputs)
        seen += [out.detach().clone(), state(model), torch.get_rng_state()]
        optimizer.step()
    return seen


def infer(example, called):
    """Two inferences; the second finds what the first may have spoiled."""
    example.model.eval()
    inputs = copies(example.inputs)
    with torch.no_grad():
        seen = [example.call(called).clone(), example.call(called).clone()]
    unchanged(example.inputs, inputs)
    return seen


def start():
    torch._dynamo.reset()
    counters.clear()


def compiled(model, backend):
    return model if backend is None else torch.compile(model, backend=backend)


def train_and_infer(name, backend, marked, dropout=False, layers=2, prepare=lambda model: None):
    """What can be seen of training and of an inference after it; ``backend`` None is eager."""
    start()
    example = build(name, layers, dropout)
    prepare(example.model)
    if marked:
        assert mark_blocks(name, example.model) >= layers
    with torch._dynamo.config.patch(graph_deduplication_lint=True):
        called = compiled(example.model, backend)
        return train(example, called) + infer(example, called)


def graphs(name, dropout=False, layers=2):
    """Number of graphs of the unmarked model: training, then inference, as ``train_and_infer`` has it."""
    start()
    example = build(name, layers, dropout)
    called = torch.compile(example.model, backend="eager")
    with torch.enable_grad():
        example.call(called)
    example.model.eval()
    with torch.no_grad():
        example.call(called)
    return counters["stats"]["unique_graphs"]


def kept():
    """Number of calls of regions that became calls of a body."""
    return counters["regions"]["traced"] + counters["regions"]["reused"]


def flat():
    """Number of calls of regions that stayed flat, or were not regions at all."""
    return counters["regions"]["inlined"]
