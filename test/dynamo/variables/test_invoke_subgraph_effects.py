"""Marked and unmarked do the same: writes to tensors, and side effects."""

import collections

import pytest
import torch
import torch.nn.functional as F
from testing.marked_cases import Cases, check_case, ways
from torch._dynamo.testing import CompileCounter


pytestmark = pytest.mark.usefixtures("bodies")
cases = Cases()
CALLED = collections.Counter()


@cases
def an_input_is_written(mark):
    @mark
    def r(t, u):
        t.add_(1)
        t[0] = 2
        u.t().mul_(2)
        return t * u

    def f(x, y, box, items, net):
        return r(y, items[0]), r(items[1], y), r(x * 1, y)

    return f


@cases
def parameters_and_buffers_are_written(mark):
    @mark
    def r(x, net):
        net.buf.add_(x.detach().mean(0))
        with torch.no_grad():
            net.lin.weight.mul_(0.5)
        return F.linear(x, net.lin.weight.detach()) * net.buf

    return lambda x, y, box, items, net: r(x, net) + r(y, net)


@cases
def a_buffer_is_replaced(mark):
    @mark
    def r(x, net):
        net.buf = net.buf * 0.5 + x.detach().mean(0)
        return x * net.buf

    return lambda x, y, box, items, net: r(x, net) + r(y, net)


@cases
def a_cache_grows(mark):
    cache = torch.zeros(8, 4, 4)

    @mark
    def r(x, k):
        cache[k] = x.detach()
        return x @ cache[: k + 1].sum(0)

    return lambda x, y, box, items, net: (r(x, 0), r(y, 1), cache.sum())


@cases
def batch_norm_in_training(mark):
    bn = torch.nn.BatchNorm1d(4)

    @mark
    def r(x):
        return bn(x).relu()

    return lambda x, y, box, items, net: (r(x) + r(y), bn.running_mean * 1, bn.num_batches_tracked * 1)


@cases
def lists_dicts_and_objects_are_written(mark):
    state = {"n": 0}

    @mark
    def r(x, box, items):
        h = x.sin() + 1
        items.append(h)
        items[0] = h * 2
        items.insert(1, x)
        state["n"] += 1
        state[f"h{state['n']}"] = h
        box.value, box.n, box.new = h, box.n + 1, (h, x)
        return h

    return lambda x, y, box, items, net: (r(x, box, items), r(y, box, items), state, items.pop())


@cases
def module_attributes_and_globals_are_written(mark):
    @mark
    def r(x, net):
        net.count += 1
        net.last = x.sin() * net.count
        CALLED["r"] += 1
        return net.last + CALLED["r"]

    def f(x, y, box, items, net):
        return r(x, net) + r(y, net)

    CALLED.clear()
    return f


@cases
def a_region_only_has_effects(mark):
    @mark
    def r(items, x):
        items.append(x.sin() + 1)

    def f(x, y, box, items, net):
        r(items, x), r(items, y)
        return items[-1] * items[-2]

    return f


@ways
@pytest.mark.parametrize("name", cases)
def test_a_mark_changes_nothing(name, backend, fullgraph, training):
    check_case(cases[name], backend, fullgraph, training)


@pytest.mark.parametrize("kind", [float, torch.tensor])
@pytest.mark.parametrize("mark", [True, False], ids=["mark", "flag"])
def test_a_value_that_is_only_moved_has_no_guard(kind, mark):
    """To store an attribute's value in a cell, which a later layer overwrites, realized the value, and guarded it."""

    def make():
        before = last = None

        def forward(self, x):
            nonlocal before, last
            y = self.b(self.a(x).tanh())
            before, last = last, self.scale
            return x + y

        return torch.compiler.nested_compile_region(forward) if mark else forward

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.scale = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), kind(1.0)

    Layer.forward = make()
    torch._dynamo.reset()
    counter = CompileCounter()
    model = torch.nn.Sequential(*(Layer() for _ in range(5)))
    with torch._dynamo.config.patch(use_graph_deduplication=not mark), torch.no_grad():
        compiled = torch.compile(model, backend=counter)
        compiled(torch.ones(2, 4))
        for layer in model[:3]:
            layer.scale = kind(2.0)
        compiled(torch.ones(2, 4))
    assert counter.frame_count == 1
