"""Real architectures, small: with the flag they train and infer as without it."""

import pytest
import torch
import torch._dynamo
from testing.cases import some
from testing.models import state
from torch._dynamo.utils import counters

from benchmarks.zoo import ARCHITECTURES
from benchmarks.zoo_more import ALL, MORE, build


STEPS = 2


def _train_and_infer(name, layers, backend, flag, dropout=False):
    """What can be seen of a few training steps and an inference; backend None is eager."""
    torch._dynamo.reset()
    counters.clear()
    example = build(name, layers, dropout)
    model = example.model
    called = model if backend is None else torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    with torch._dynamo.config.patch(
        use_graph_deduplication=flag, graph_deduplication_lint=True, error_on_recompile=False
    ):
        for step in range(STEPS):
            torch.manual_seed(step)
            optimizer.zero_grad(set_to_none=True)
            out = example.call(called)
            out.float().pow(2).mean().backward()
            before = state(model)
            seen += [out.detach().clone(), before, torch.get_rng_state()]
            optimizer.step()
        model.eval()
        with torch.no_grad():
            seen.append(example.call(called).clone())
    return seen


def _compare(name, layers, backend, dropout=False):
    reference = None if not dropout else backend
    wanted = _train_and_infer(name, layers, reference, False, dropout)
    graphs = counters["stats"]["unique_graphs"]
    got = _train_and_infer(name, layers, backend, True, dropout)
    assert counters["graph_deduplication"]["calls"] >= 2
    if reference is not None:
        assert counters["stats"]["unique_graphs"] <= graphs
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", some(ARCHITECTURES, ["llama", "bert", "qwen3_moe", "t5", "swin", "mamba"]))
def test_aot_eager_as_eager(name):
    _compare(name, 2, "aot_eager")


@pytest.mark.parametrize("name", some(ARCHITECTURES, ["llama", "qwen3_moe"]))
def test_inductor_as_eager(name):
    _compare(name, 2, "inductor")


@pytest.mark.parametrize("name", some(["bert", "gpt2", "t5"], ["gpt2"]))
def test_with_dropout_as_without_the_flag(name):
    _compare(name, 2, "aot_eager", dropout=True)


# Operators of the top graph plus those of one of each body, as stock 2.13.0's flag leaves them
# with four blocks: training, inference. None: stock's flag fails.
STOCK_LEAVES = {
    "llama": (123, 121),
    "gpt2": (89, 89),
    "bert": (50, 50),
    "vit": (44, 44),
    "qwen3": (139, 137),
    "t5": (None, 276),
    "whisper": (146, 146),
    "swin": (None, 295),
    "deberta": (146, 146),
    "flux": (445, 445),
}


def _left(name, train):
    """Operators left to the backend, and number of graphs."""
    sizes = []

    def backend(gm, _):
        graphs = [m.graph for m in gm.modules() if isinstance(m, torch.fx.GraphModule)]
        sizes.append(sum(n.op.startswith("call_") for g in graphs for n in g.nodes))
        return gm.forward

    torch._dynamo.reset()
    example = build(name, 4)
    example.model.train(train)
    with torch.set_grad_enabled(train), torch._dynamo.config.patch(use_graph_deduplication=True):
        example.call(torch.compile(example.model, backend=backend))
    return sum(sizes), len(sizes)


@pytest.mark.parametrize("name", STOCK_LEAVES)
def test_no_more_operators_are_left_than_stock_leaves(name):
    for train, stock in zip((True, False), STOCK_LEAVES[name]):
        operators, graphs = _left(name, train)
        assert graphs == 1
        if stock is not None:
            assert operators <= stock


# One call of the block is traced at least, and one is stamped out of it, with the layers that the test has.
REUSED = ["albert", "opt", "gemma2", "distilbert", "encoder"]


@pytest.mark.parametrize("name", some(MORE, ["albert", "gemma2", "dit", "encoder", "dlrm", "resnet50"]))
def test_what_nobody_marks_as_eager(name):
    wanted, got = (_train_and_infer(name, 3, backend, flag) for backend, flag in ((None, False), ("aot_eager", True)))
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    if name in REUSED:
        assert counters["regions"]["automatic: reused"] >= 1


@pytest.mark.parametrize("name", some(ALL, ["llama", "bert"]))
@pytest.mark.parametrize("train", [True, False])
def test_a_reuse_leaves_the_frame_as_tracing_the_call_does(name, train):
    torch._dynamo.reset()
    counters.clear()
    example = build(name, 3, False)
    example.model.train(train)
    options = torch._dynamo.config.patch(use_graph_deduplication=True, verify_region_reuse=True)
    with options, torch.set_grad_enabled(train):
        example.call(torch.compile(example.model, backend="eager"))
    assert counters["regions"]["verified"] or name not in ("llama", "bert")


@pytest.mark.parametrize("name", some(ALL, ["mamba"]))
def test_a_reuse_with_sizes_that_move_leaves_the_frame_as_tracing_the_call_does(name):
    torch._dynamo.reset()
    counters.clear()
    example = build(name, 4)
    with torch._dynamo.config.patch(use_graph_deduplication=True, verify_region_reuse=True):
        example.call(torch.compile(example.model, backend="eager", dynamic=True))
    assert counters["regions"]["verified"] or name not in ("mamba", "swin")
