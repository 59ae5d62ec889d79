"""Operators that branch and loop are operators of a region, if those in their bodies may be."""

import pytest
import torch
from testing.automatic_cases import Block, X, check, compare, stack_of
from testing.cases import some
from torch._dynamo.regions.outcomes import outcomes
from torch._dynamo.utils import counters
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch._ops import HigherOrderOperator


class Branches(Block):
    """Its branches read its own parameters."""

    def forward(self, x):
        h = self.norm(self.linear(x))
        h = torch.cond(h.sum() > 0, lambda t: self.linear(t).sin(), lambda t: t.cos() * self.norm.weight, (h,))
        return x + h.relu() * self.scale


class Nested(Block):
    def forward(self, x):
        def inner(t):
            return torch.cond(t.mean() > 0, lambda u: u.sin(), lambda u: u.exp() * self.norm.weight, (t,))

        h = self.norm(self.linear(x))
        return x + torch.cond(h.sum() > 0, inner, lambda t: t.cos(), (h,)).relu()


class Several(Block):
    def forward(self, x):
        h = self.norm(self.linear(x))
        a, b = torch.cond(h.sum() > 0, lambda t: (t.clone(), t.sin()), lambda t: (t * 2, t.exp()), (h,))
        return x + a * b


class Detached(Block):
    """A gradient flows back through one of two branches."""

    def forward(self, x):
        h = self.norm(self.linear(x))
        return x + torch.cond(h.sum() > 0, lambda t: t.detach().sin(), lambda t: t * 2, (h,)).cos()


class Rows(Block):
    def forward(self, x):
        h = self.norm(self.linear(x))
        return x + map_rows(lambda row: (row * self.norm.weight).sin(), h).relu()


class Scans(Block):
    def forward(self, x):
        h = self.norm(self.linear(x))
        carried = h[0].clone()
        return x + scan(lambda c, row: ((c + row).sin(), (c * row).cos()), carried, h)[1].relu()


class Vmapped(Block):
    def forward(self, x):
        h = self.norm(self.linear(x))
        row = torch.vmap(lambda r: torch.cond(r.sum() > 0, lambda t: t.sin(), lambda t: t * 2, (r,)))
        return x + row(h).relu()


class Loops(Block):
    def forward(self, x):
        h = self.norm(self.linear(x))
        count = torch.zeros((), dtype=torch.int64)
        h = while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, (t * 0.5).sin()), (count, h))[1]
        return x + h.relu() * self.scale


KINDS = [Branches, Nested, Several, Detached, Rows, Scans, Vmapped, Loops]


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_with_control_flow_is_traced_once_and_has_one_body(kind):
    check(stack_of(kind), X)
    assert [o.outcome.name for o in outcomes()] == ["REUSED"] * 3 + ["TRACED"]


def _compiled(kind, training=True, dynamic=None):
    """The graph of a stack under the flag."""
    torch._dynamo.reset()
    counters.clear()
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    model = stack_of(kind)()
    with torch._dynamo.config.patch(use_graph_deduplication=True), torch.set_grad_enabled(training):
        torch.compile(model, backend=keep, dynamic=dynamic)(X.clone().requires_grad_(training))
    return graphs[0]


def _outside(graph):
    """Operators with bodies in ``graph`` that are no calls of regions."""
    targets = [node.target for node in graph.graph.nodes]
    return [t for t in targets if isinstance(t, HigherOrderOperator) and t is not invoke_subgraph]


@pytest.mark.parametrize("kind", KINDS)
def test_its_operator_is_in_the_body(kind):
    graph = _compiled(kind, training=kind is not Loops)
    assert counters["graph_deduplication"]["bodies"] == 1 and not _outside(graph)


@pytest.mark.parametrize("kind", [Branches, Rows])
def test_it_is_in_the_body_with_dynamic_sizes(kind):
    graph = _compiled(kind, dynamic=True)
    # In the first layer, which is flat, reads of symbolic floats stand between the operators.
    assert counters["graph_deduplication"]["bodies"] == 1 and len(_outside(graph)) <= 1


@pytest.mark.parametrize("kind", some([Branches, Nested, Scans], [Branches]))
def test_inductor(kind):
    compare(stack_of(kind), X, backend="inductor")
    assert counters["graph_deduplication"]["bodies"]


def test_inductor_loops():
    compare(stack_of(Loops), X, backend="inductor", training=False)
    assert counters["graph_deduplication"]["bodies"]


class Draws(Block):
    def forward(self, x):
        h = self.norm(self.linear(x))
        h = torch.cond(h.sum() > 0, lambda t: torch.rand_like(t) * t, lambda t: t.cos(), (h,))
        return x + h.relu() * self.scale


class Writes(Block):
    """A branch may write only where no gradients are taken."""

    def __init__(self, size):
        super().__init__(size)
        self.register_buffer("seen", torch.zeros(2, size))

    def forward(self, x):
        def writes(t):
            self.seen.add_(t)
            return t.sin()

        h = self.norm(self.linear(x))
        if torch.is_grad_enabled():
            return x + h
        return x + torch.cond(h.sum() > 0, writes, lambda t: t.cos(), (h,)).relu() + self.seen


@pytest.mark.parametrize("kind", [Draws, Writes])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_branch_that_draws_or_writes_is_in_no_body(kind, backend):
    compare(stack_of(kind), X, backend=backend, training=kind is Draws)
    assert len(_outside(_compiled(kind, training=kind is Draws))) == 4


class Differs(Block):
    made = 0

    def __init__(self, size):
        super().__init__(size)
        Differs.made += 1
        self.factor = 2.0 + Differs.made % 2

    def forward(self, x):
        h = self.norm(self.linear(x))
        h = torch.cond(h.sum() > 0, lambda t: t.sin() * self.factor, lambda t: t.cos(), (h,))
        return x + h.relu() * self.scale


def test_operators_whose_branches_differ_in_a_constant_share_no_body():
    compare(stack_of(Differs), X)
    assert counters["graph_deduplication"]["bodies"] == 2
