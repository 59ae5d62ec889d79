"""The graph after outlining, and that nothing but the graph changed."""

import functools
import itertools

import pytest
import torch
import torch._dynamo
import torch.fx
import torch.nn.functional as F
from expecttest import TestCase
from testing.cases import some
from testing.flag_programs import Program, check
from torch._dynamo import graph_deduplication as dedup
from torch._dynamo.regions.outline import outliner
from torch._dynamo.utils import counters
from torch.utils._ordered_set import OrderedSet
from torch.utils._pytree import tree_leaves


def outlined(function, *args):
    """The graph and the bodies that a backend gets for ``function``."""
    seen = []

    def backend(gm, _):
        text = [gm.print_readable(print_output=False)]
        seen.extend(text)
        return gm.forward

    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=True, graph_deduplication_lint=True):
        torch.compile(function, backend=backend, fullgraph=True)(*args)
    lines = [line.split("#")[0].rstrip() for line in seen[0].splitlines()]
    return "\n".join(line for line in lines if line)


X, W = torch.randn(4, 4), torch.randn(4, 4)


class OutlinedGraphTest(TestCase):
    def test_three_turns_are_three_calls_of_one_body(self):
        def f(x, w):
            for _ in range(3):
                x = ((x @ w).sin().cos() + x).tan().abs()
            return x

        self.assertExpectedInline(
            outlined(f, X, W),
            """\
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, 4]", L_w_: "f32[4, 4]"):
        subgraph_0 = self.subgraph_0
        l_x_ = L_x_
        l_w_ = L_w_
        invoke_subgraph = torch.ops.higher_order.invoke_subgraph(subgraph_0, 'subgraph_0', l_x_, l_w_);  l_x_ = None
        getitem: "f32[4, 4]" = invoke_subgraph[0];  invoke_subgraph = None
        invoke_subgraph_1 = torch.ops.higher_order.invoke_subgraph(subgraph_0, 'subgraph_0', getitem, l_w_);  getitem = None
        getitem_1: "f32[4, 4]" = invoke_subgraph_1[0];  invoke_subgraph_1 = None
        invoke_subgraph_2 = torch.ops.higher_order.invoke_subgraph(subgraph_0, 'subgraph_0', getitem_1, l_w_);  subgraph_0 = getitem_1 = l_w_ = None
        getitem_2: "f32[4, 4]" = invoke_subgraph_2[0];  invoke_subgraph_2 = None
        return (getitem_2,)
    class subgraph_0(torch.nn.Module):
        def forward(self, arg0: "f32[4, 4]", arg1: "f32[4, 4]"):
            matmul: "f32[4, 4]" = arg0 @ arg1;  arg1 = None
            sin: "f32[4, 4]" = matmul.sin();  matmul = None
            cos: "f32[4, 4]" = sin.cos();  sin = None
            add: "f32[4, 4]" = cos + arg0;  cos = arg0 = None
            tan: "f32[4, 4]" = add.tan();  add = None
            x: "f32[4, 4]" = tan.abs();  tan = None
            return (x,)""",
        )

    def test_a_tuple_is_taken_apart_inside(self):
        def f(x):
            for _ in range(2):
                a, b = x.sin().cos().split(2, 1)
                x = torch.cat((b * a, a), 1).tanh().exp().abs()
            return x

        self.assertExpectedInline(
            outlined(f, X),
            """\
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, 4]"):
        subgraph_0 = self.subgraph_0
        l_x_ = L_x_
        invoke_subgraph = torch.ops.higher_order.invoke_subgraph(subgraph_0, 'subgraph_0', l_x_);  l_x_ = None
        getitem_4: "f32[4, 4]" = invoke_subgraph[0];  invoke_subgraph = None
        invoke_subgraph_1 = torch.ops.higher_order.invoke_subgraph(subgraph_0, 'subgraph_0', getitem_4);  subgraph_0 = getitem_4 = None
        getitem_5: "f32[4, 4]" = invoke_subgraph_1[0];  invoke_subgraph_1 = None
        return (getitem_5,)
    class subgraph_0(torch.nn.Module):
        def forward(self, arg0: "f32[4, 4]"):
            sin: "f32[4, 4]" = arg0.sin();  arg0 = None
            cos: "f32[4, 4]" = sin.cos();  sin = None
            split = cos.split(2, 1);  cos = None
            a: "f32[4, 2]" = split[0]
            b: "f32[4, 2]" = split[1];  split = None
            mul: "f32[4, 2]" = b * a;  b = None
            cat: "f32[4, 4]" = torch.cat((mul, a), 1);  mul = a = None
            tanh: "f32[4, 4]" = cat.tanh();  cat = None
            exp: "f32[4, 4]" = tanh.exp();  tanh = None
            x: "f32[4, 4]" = exp.abs();  exp = None
            return (x,)""",
        )


def test_counters_say_what_was_outlined():
    def f(x):
        for _ in range(4):
            x = x.sin().cos().tan().exp().relu()
        return x

    counters.clear()
    outlined(f, X)
    assert dict(counters["graph_deduplication"]) == {
        "bodies": 1,
        "calls": 4,
        "operators": 20,
        "operators_outlined": 20,
    }


def test_without_the_flag_nothing_is_tracked():
    counters.clear()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=False):
        torch.compile(lambda x: x.sin().cos().sin().cos(), backend="eager")(X)
    assert not counters["graph_deduplication"]


def test_a_failure_to_find_regions_leaves_the_flat_graph(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("a bug in matching")

    monkeypatch.setattr("torch._dynamo.regions.outline.find.find_repeats", fail)
    torch._dynamo.reset()
    counters.clear()

    def f(x):
        for _ in range(4):
            x = x.sin().cos().tan().exp().relu()
        return x

    with torch._dynamo.config.patch(use_graph_deduplication=True):
        torch.testing.assert_close(torch.compile(f, backend="eager", fullgraph=True)(X), f(X))
    assert counters["graph_deduplication"]["failed"] == 1


def _broken_lint(monkeypatch, name, change):
    """Runs a program under lint with one step of outlining changed by ``change``."""
    original = getattr(outliner, name)
    for module in (outliner, dedup):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, functools.partial(change, original))

    def f(x, y):
        for _ in range(3):
            x = ((x.sin() + y).cos() * y).tan().exp()
        return x

    with pytest.raises(Exception, match="stands for|boundary|program order|wiring|body returns"):
        outlined(f, X, W)


def test_lint_finds_a_body_with_its_operands_swapped(monkeypatch):
    turns = iter(range(100))
    _broken_lint(
        monkeypatch,
        "inputs_of",
        lambda original, region: original(region)[:: -1 if next(turns) else 1],
    )


def test_lint_finds_a_body_that_returns_something_else(monkeypatch):
    _broken_lint(
        monkeypatch, "make_body", lambda original, region, places, *a, **kw: original(region, [places[0] - 1], *a, **kw)
    )


def test_lint_finds_a_result_that_may_not_cross(monkeypatch):
    def f(x):
        outs = []
        for _ in range(3):
            y = x.sin().cos().tan().exp()
            outs += [y, y.t()]
            x = y.abs().relu().sigmoid().tanh()
        return x, outs

    from torch._dynamo.regions.outline.fit import Fitter

    monkeypatch.setattr(Fitter, "_broken_indices", lambda *_: set())
    with pytest.raises(Exception, match="may not cross the boundary"):
        outlined(f, X)


# Programs that were wrong with stock's flag, or with an earlier version of this one.
CAUSES = {
    "constant_left_out_of_the_key": """
    for i in range(3):
        outs.append((h * [2.0, 3.0, 4.0][i]).sin().cos().tan().sum())
""",
    "write_moved_past_a_read": """
    for i in range(3):
        h = h.sin().cos().tan() + buf
        buf.add_(1.0)
        h = h.sin().cos().tan() - buf
""",
    "metadata_changed_in_place": """
    for i in range(3):
        t = h * 2; t.unsqueeze_(0); h = t.squeeze(0).cos().sin()
""",
    "memory_never_written": """
    for i in range(3):
        z = torch.empty(4, 4); z.copy_(h.sin()); h = z.cos() + h
""",
    "gradient_of_a_dead_result": """
    for i in range(3):
        y = (h - h).sqrt().sin().cos()
        h = y.detach() + h.sin().cos().tan()
""",
    "no_grad_island_swallows_the_gradient": """
    for i in range(3):
        z = torch.zeros(4, 4); z[:2] = h[:2]; h = h + z
        with torch.set_grad_enabled(i != 1):
            h = (h * b + b).sin().cos()
        t = h * 1; u = t.t(); u.add_(1); h = t.sin()
""",
    "autocast_within_the_block": """
    for i in range(3):
        with torch.autocast('cpu', dtype=torch.bfloat16):
            h = ((h @ ws[i]).relu() @ ws[0]).sin().cos()
        h = h.float()
""",
    "operands_shared_in_one_turn_only": """
    for i in range(3):
        h = (h.sin() @ ws[0] + ws[[0, 1, 0][i]]).cos().tan().exp()
""",
    "hook_on_a_value_inside": """
    for i in range(3):
        h = (h * 1).sin().cos(); h.register_hook(lambda g: g * 2) if h.requires_grad else None
        h = (h * h).sin().cos().tan()
""",
    "random_numbers_between_blocks": """
    for i in range(3):
        h = F.dropout(h.sin().cos().tan().exp(), 0.5, True)
        h = h + torch.rand_like(h).sin().cos().tan()
""",
    "view_returned_beside_its_base": """
    for i in range(3):
        h = h.sin().cos().tan().exp()
        outs += [h, h.t(), h.view(2, 8)]
""",
    "gradient_taken_in_the_graph": """
    for i in range(2):
        n = torch.func.grad(lambda t: t.sin().cos().tan().sum())(h.detach()); h = h + n
""",
    "vmap_within_the_block": """
    for i in range(3):
        h = torch.vmap(lambda r: r.sin() * 2 + r)(h).cos().tan()
""",
    "checkpoint_with_another_body": """
    for i in range(3):
        h = checkpoint(lambda t: (t * [1.0, 2.0, 3.0][i]).sin(), h, use_reentrant=False).relu().cos()
""",
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("cause", CAUSES)
def test_the_flag_changes_nothing(cause, training):
    source = "def f(x, ws, b, buf):\n    outs = []\n    h = x" + CAUSES[cause] + "    return h, outs\n"
    check(Program(source, training), ("eager", "aot_eager"))


@pytest.mark.parametrize("cause", CAUSES)
def test_the_flag_changes_nothing_for_inductor(cause):
    source = "def f(x, ws, b, buf):\n    outs = []\n    h = x" + CAUSES[cause] + "    return h, outs\n"
    check(Program(source, True), ("inductor",))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_ambient_autocast_reaches_the_bodies_and_their_backward(backend):
    model = _stack()
    x = torch.randn(4, 8)

    def step(called):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = called(x)
        out.float().pow(2).sum().backward()
        return out, [p.grad.clone() for p in model.parameters()]

    wanted = step(model)
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(use_graph_deduplication=True, graph_deduplication_lint=True):
        got = step(torch.compile(model, backend=backend, fullgraph=True))
    assert counters["graph_deduplication"]["calls"] > 0
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_dynamic_shapes_share_bodies(backend):
    def f(x, w):
        for _ in range(3):
            x = ((x @ w).relu() + x).cos().reshape(x.shape[0] * 2, 2).sin().tanh().view(-1, 4)
        return x * x.shape[0]

    w = torch.randn(4, 4, requires_grad=True)
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(use_graph_deduplication=True, graph_deduplication_lint=True):
        called = torch.compile(f, backend=backend, fullgraph=True, dynamic=True)
        for size in (3, 5, 8):
            x = torch.randn(size, 4)
            got, wanted = called(x, w), f(x, w)
            torch.testing.assert_close(got, wanted)
            torch.testing.assert_close(torch.autograd.grad(got.sum(), w), torch.autograd.grad(wanted.sum(), w))
    assert counters["graph_deduplication"]["calls"] > 0
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_inference_mode(backend):
    model = _stack()
    torch._dynamo.reset()
    with torch.inference_mode(), torch._dynamo.config.patch(use_graph_deduplication=True):
        x = torch.randn(4, 8)
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))


def _against_flat(function, inputs, backend, calls=1):
    """Runs ``function(*inputs())`` flat and with the flag: the same results, gradients and states of the inputs."""

    def once(flag):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        args = inputs()
        torch.manual_seed(1)
        with torch._dynamo.config.patch(use_graph_deduplication=flag, graph_deduplication_lint=True):
            out = torch.compile(function, backend=backend, fullgraph=True)(*args)
        leaves = [t for t in tree_leaves(out) if t.requires_grad]
        sum(t.float().sum() for t in leaves).backward() if leaves else None
        tensors = [
            t
            for a in args
            for t in ([*a.parameters(), *a.buffers()] if isinstance(a, torch.nn.Module) else tree_leaves(a))
        ]
        return out, tensors, [t.grad for t in tensors], torch.rand(1)

    wanted, got = once(False), once(True)
    assert counters["graph_deduplication"]["calls"] >= calls
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def _weights(grad=True):
    return torch.randn(4, 4, requires_grad=grad), [torch.randn(4, 4, requires_grad=grad) for _ in range(6)]


class _Norm(torch.nn.Module):
    def __init__(self, counted):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.BatchNorm1d(4) for _ in range(5))
        for norm in () if counted else self.blocks:
            norm.num_batches_tracked = None

    def forward(self, x):
        for norm in self.blocks:
            x = norm((x * 1.1).sin() + x.cos()).relu().exp().tanh() * 0.5 + x * 1.1
        return x


NORMS = list(itertools.product(["aot_eager", "inductor"], [True, False], [True, False]))


@pytest.mark.parametrize("backend, counted, grad", some(NORMS, NORMS[:5]))
def test_running_statistics_are_a_write_that_no_version_counter_shows(backend, counted, grad):
    def f(model, x):
        with torch.set_grad_enabled(grad):
            return model(x)

    _against_flat(f, lambda: (_Norm(counted), torch.randn(4, 4)), backend)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_write_to_a_list_of_tensors_stays_outside(backend):
    def f(x, ws):
        for w in ws:
            a, b = x * 1.0, w * 1.0
            torch._foreach_mul_([a, b], 2.0)
            x = ((a @ b).sin() + x).cos().tanh().sigmoid().exp()
        return x

    _against_flat(f, lambda: _weights(), backend)


def test_a_choice_of_attention_kernel_around_layers_keeps_them_flat():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def f(x, ws):
        for kernel, those in ((SDPBackend.MATH, ws[:3]), (SDPBackend.FLASH_ATTENTION, ws[3:])):
            with sdpa_kernel(kernel):
                for w in those:
                    q = (x @ w).view(1, 1, 4, 4)
                    x = F.scaled_dot_product_attention(q * 1.1, q.sin(), q.cos()).view(4, 4).sigmoid() * 2 + x
        return x

    # A body's backward would be traced outside of these contexts, with another kernel.
    _against_flat(f, _weights, "aot_eager", calls=0)
    assert counters["graph_deduplication"]["calls"] == 0


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_returned_view_can_be_written_afterwards(backend):
    def f(x, ws):
        outs = []
        for w in ws:
            x = ((x @ w).sin() + x.cos()).sigmoid().exp() * 2
            outs.append(x.view(16)[2:7])
            x = x * 0.3
        return x, outs

    def then_write(flag):
        torch._dynamo.reset()
        torch.manual_seed(0)
        x, ws = _weights()
        with torch._dynamo.config.patch(use_graph_deduplication=flag):
            out, views = torch.compile(f, backend=backend, fullgraph=True)(x, ws)
        views[2].add_(1)
        (out.sum() + sum(v.sum() for v in views)).backward()
        return [v._is_view() for v in views], views, x.grad, [w.grad for w in ws]

    torch.testing.assert_close(then_write(True), then_write(False), rtol=1e-4, atol=1e-5)


@torch.library.custom_op("regions_test::noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


noise.register_fake(torch.empty_like)
noise.register_autograd(lambda ctx, grad: grad)


@pytest.mark.parametrize("op", [torch.ops.regions_test.noise, torch.ops.regions_test.noise.default])
def test_a_random_operator_of_the_user_is_known_by_its_tag(op):
    def f(x, ws):
        return [torch.tanh(op(x) @ ws[0]).sin().exp().sigmoid() * 0.5 + x.cos() for _ in range(6)]

    _against_flat(f, lambda: _weights(), "aot_eager")


def _stack():
    layers = torch.nn.Linear, torch.nn.LayerNorm
    block = [make for _ in range(3) for make in (lambda: layers[0](8, 8), torch.nn.GELU, lambda: layers[1](8))]
    return torch.nn.Sequential(*(make() for _ in range(4) for make in block))


class SortTest(TestCase):
    def _graph(self):
        graph = torch.fx.Graph()
        a = graph.placeholder("a")
        nodes = [a, *(graph.call_function(torch.sin, (a,), name=n) for n in "bcde")]
        graph.output(nodes[-1])
        return graph, nodes

    def _names(self, graph):
        return " ".join(n.name for n in graph.nodes)

    def test_a_node_comes_right_after_what_it_waited_for(self):
        graph, (a, b, c, d, e) = self._graph()
        dedup._stable_topological_sort(graph, {b: OrderedSet([d])})
        self.assertEqual(self._names(graph), "a c d b e output")

    def test_a_sorted_graph_is_left_alone(self):
        graph, nodes = self._graph()
        dedup._stable_topological_sort(graph, {nodes[3]: OrderedSet([nodes[1]])})
        self.assertEqual(self._names(graph), "a b c d e output")

    def test_a_cycle_is_an_error_and_changes_nothing(self):
        graph, (a, b, c, d, e) = self._graph()
        cycle = {b: OrderedSet([d]), d: OrderedSet([b])}
        self.assertTrue(dedup._has_cycle(graph, cycle))
        self.assertFalse(dedup._has_cycle(graph, {b: OrderedSet([d])}))
        with self.assertRaisesRegex(AssertionError, "cycle"):
            dedup._stable_topological_sort(graph, cycle)
        self.assertEqual(self._names(graph), "a b c d e output")

    def test_a_region_is_sorted_in_itself(self):
        graph, (a, b, c, d, e) = self._graph()
        b.args = (d,)
        dedup._stable_topological_sort_region(graph, OrderedSet([b, c, d]))
        self.assertEqual(self._names(graph), "a c d b e output")

    def test_sorting_a_region_without_order_is_an_error(self):
        graph, (a, b, c, d, e) = self._graph()
        b.args, d.args = (d,), (b,)
        with self.assertRaisesRegex(AssertionError, "cycle"):
            dedup._stable_topological_sort_region(graph, OrderedSet([b, c, d]))
