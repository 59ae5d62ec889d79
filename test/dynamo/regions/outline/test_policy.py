"""The policy of outlining, switched off: every repeat that may be a body is one, however small, and results stay."""

import pytest
import torch
import torch._dynamo
from testing.flag_programs import check, programs
from testing.random_examples import PARTS, run_examples
from torch._dynamo.regions.outline.policy import EVERY_REPEAT, IN_BODY, IN_GRAPH, policy_in
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves, tree_map


@pytest.fixture(autouse=True)
def policy_off():
    with torch._dynamo.config.patch(outlining_policy=False, graph_deduplication_lint=True):
        yield


def scaled(x):
    y = x * 1.5
    return y.sin()


def mixed(x, w):
    y = (x @ w).relu()
    return (y + x).tanh()


def two_nodes(x, w):
    return scaled(x) - w, scaled(w).exp()


def several_groups(x, w):
    a = scaled(x)
    b = mixed(a, w)
    c = scaled(b).abs()
    return mixed(c, x) * 2


def nested_arguments(x, w):
    def joined(parts, how):
        first, (second, more) = parts
        return torch.cat([first, more["w"]], **how).sum(0) @ torch.stack([second, first]).mean(0).repeat(1, 2).t()

    a = joined([x, (w, {"w": x})], {"dim": 1})
    b = joined([w, (x, {"w": w})], {"dim": 1})
    return a * 2, b.cos()


def writes_what_it_is_given(x, w):
    def add(t, by):
        t.add_(by)
        return t.sin().exp()

    t, u = x * 1, w * 1
    a, b = add(t, w), add(u, x)
    return a, b, t, u


def writes_what_it_makes(x, w):
    def filled(by):
        t = by * 2
        t.mul_(3)
        return t.cos()

    return filled(x) + w, filled(w).exp()


def returns_views(x, w):
    def views(t):
        return t.view(16).view(4, 4)

    return views(x) + views(w).exp()


def grad_modes(x, w):
    a = scaled(x).exp() - scaled(w)
    with torch.no_grad():
        return a, scaled(x).tan() / scaled(w)


def autocast(x, w):
    a = mixed(x, w).exp() - mixed(w, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return a, mixed(x, w).tan() / mixed(w, x)


def dropped_result(x, w):
    scaled(w)
    return scaled(x) + scaled(x.cos()).exp()


def inputs():
    torch.manual_seed(3)
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


def observed(function, *args):
    """Results, gradients and what became of the arguments."""
    out = function(*args)
    sum((t.float() ** 2).sum() for t in tree_leaves(out) if t.requires_grad).backward()
    return out, [a.grad for a in args], [a.detach() for a in args]


def graphs(function, *args):
    """The graphs that a backend is given for ``function``."""
    found = []

    def backend(gm, _):
        found.append(gm)
        return gm.forward

    with torch._dynamo.config.patch(use_graph_deduplication=True):
        torch.compile(function, backend=backend, fullgraph=True)(*args)
    return found


def outlined(function, *args):
    """(operators, calls) of each body in these graphs, ascending."""
    found = {}
    for gm in graphs(function, *args):
        for call in gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph):
            body = getattr(gm, str(call.args[0].target)).graph
            length = sum(node.op not in ("placeholder", "output") for node in body.nodes)
            found[call.args[1]] = (length, found.get(call.args[1], (0, 0))[1] + 1)
    return sorted(found.values())


PROGRAMS = {
    two_nodes: [(2, 2)],
    several_groups: [(2, 2), (4, 2)],
    nested_arguments: [(7, 2)],
    # The write is a boundary, what follows it is outlined.
    writes_what_it_is_given: [(2, 2)],
    writes_what_it_makes: [(3, 2)],
    # Results that alias an operand.
    returns_views: [],
    # Each mode its own body.
    grad_modes: [(2, 2), (2, 2)],
    # Operators under another autocast than the frame's own are in bodies of their own.
    autocast: [(4, 2), (6, 2)],
    dropped_result: [(2, 2)],
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_small_repeats_are_bodies_with_the_policy_off(program):
    assert outlined(program, *inputs()) == PROGRAMS[program]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_the_policy_leaves_them_flat(program):
    with torch._dynamo.config.patch(outlining_policy=True):
        assert outlined(program, *inputs()) == []


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_results_are_those_of_eager(program, backend):
    wanted = observed(program, *inputs())
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        got = observed(torch.compile(program, backend=backend, fullgraph=True), *inputs())
    torch.testing.assert_close(got, wanted, rtol=2e-2 if program is autocast else 1e-4, atol=1e-2)
    assert (counters["graph_deduplication"]["calls"] > 0) == bool(PROGRAMS[program])


@pytest.mark.parametrize("program", [several_groups, writes_what_it_makes, grad_modes], ids=lambda p: p.__name__)
def test_results_are_those_of_eager_with_inductor(program):
    wanted = observed(program, *inputs())
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        got = observed(torch.compile(program, backend="inductor", fullgraph=True), *inputs())
    torch.testing.assert_close(tree_map(torch.clone, got), wanted, rtol=1e-4, atol=1e-4)
    assert counters["graph_deduplication"]["calls"] > 0


@pytest.mark.parametrize("part", PARTS)
def test_nothing_changes_for_random_programs(part):
    found = []
    run_examples(programs(), lambda p: found.append(check(p, ("eager", "aot_eager")) > 0), part, by_default=12)
    assert sum(found) > len(found) // 4


def test_a_call_stands_where_its_region_stood():
    """Upstream sorts the graph anew; here nothing moves past anything else."""

    def f(x, w):
        t = x.clone()
        t.mul_(2)
        a, b = scaled(t), w.cos()
        return a, b, scaled(t) - b

    (gm,) = graphs(f, *inputs())
    operators = [str(node.target) for node in gm.graph.nodes if node.op.startswith("call")]
    call, result = "invoke_subgraph", "<built-in function getitem>"
    assert operators == ["clone", "mul_", call, result, "cos", call, result, "<built-in function sub>"]


def test_what_is_read_before_its_last_write_stays_where_it_is():
    def f(x, w):
        t = x.clone()
        a = scaled(t)
        t.mul_(2)
        b = w.cos()
        return a, b, scaled(t) - b

    (gm,) = graphs(f, *inputs())
    operators = [node.name for node in gm.graph.nodes if node.op.startswith("call")]
    assert operators == ["t", "y", "a", "mul_", "b", "y_1", "sin_1", "sub"]


def test_the_option_chooses_the_policy():
    assert policy_in(0) is policy_in(1) is EVERY_REPEAT
    with torch._dynamo.config.patch(outlining_policy=True):
        assert (policy_in(0), policy_in(1), policy_in(2)) == (IN_GRAPH, IN_BODY, IN_BODY)


def test_automatic_regions_of_two_nodes_are_bodies():
    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.part(x).sin()

    class Stack(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Small() for _ in range(4))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    model, (x, _) = Stack(), inputs()
    found = outlined(model, x)
    assert sum(calls for _, calls in found) >= 3
    assert {length for length, _ in found} == {2}
    with torch._dynamo.config.patch(outlining_policy=True):
        torch._dynamo.reset()
        assert outlined(model, x) == []
