"""Which regions are identical, and which of them are found to be worth outlining."""

import torch
import torch._dynamo
import torch.nn.functional as F
from expecttest import TestCase
from torch._dynamo.regions.outline.graph_view import GraphView
from torch._dynamo.testing import extract_graph_and_tracker


def tracked(function, *args):
    """The flat graph of ``function`` and its tracker."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(track_nodes_for_deduplication=True, use_graph_deduplication=False):
        return extract_graph_and_tracker(function, *args)


def names(groups):
    return [[[n.name for n in region] for region in group] for group in groups]


def regions(function, *args):
    """Groups of regions of the flat graph of ``function`` that the dedupe pass would outline, as names of nodes."""
    graph, tracker = tracked(function, *args)
    return names(group.regions for group in tracker.find_groups(graph, {}))


def identical(function, *args):
    """Groups of identical regions of the flat graph of ``function``, as names of nodes."""
    graph, tracker = tracked(function, *args)
    return names(tracker.get_identical_regions(graph))


def show(groups):
    return "\n".join(" | ".join(" ".join(r) for r in group) for group in groups)


X, W = torch.randn(4, 4), torch.randn(4, 4)
GRAD = torch.randn(4, 4, requires_grad=True)


def block(x, w):
    y = (x @ w).relu()
    y = y + x
    return (y * y).cos() @ w


class GraphRegionTrackerTest(TestCase):
    def test_equal_blocks_are_one_group(self):
        def f(x, w):
            for _ in range(4):
                x = block(x, w)
            return x

        self.assertExpectedInline(
            show(regions(f, X, W)),
            """matmul y y_1 mul cos x | matmul_2 y_2 y_3 mul_1 cos_1 x_1 | matmul_4 y_4 y_5 mul_2 cos_2 x_2 | matmul_6 y_6 y_7 mul_3 cos_3 x_3""",
        )

    def test_the_source_line_does_not_matter(self):
        def f(x, w):
            x = (((x @ w).sin() + x).cos() * 2).tan().abs().relu()
            x = x.exp()
            y = (x @ w).sin() + x
            y = y.cos() * 2
            return y.tan().abs().relu()

        self.assertExpectedInline(
            show(regions(f, X, W)),
            """matmul sin add cos mul tan abs_1 x | matmul_1 sin_1 y cos_1 y_1 tan_1 abs_2 relu_1""",
        )

    def test_a_constant_that_differs_splits_the_block(self):
        def f(x):
            for s in (1, 1.0, True, 2):
                x = (x.sin().cos().tan().exp().abs() * s).relu().sigmoid().tanh().abs().neg()
            return x

        self.assertExpectedInline(
            show(regions(f, X)),
            """relu sigmoid tanh abs_2 x sin_1 cos_1 tan_1 exp_1 abs_3 | relu_1 sigmoid_1 tanh_1 abs_4 x_1 sin_2 cos_2 tan_2 exp_2 abs_5 | relu_2 sigmoid_2 tanh_2 abs_6 x_2 sin_3 cos_3 tan_3 exp_3 abs_7""",
        )

    def test_random_operators_stay_where_they_are(self):
        def f(x):
            for _ in range(4):
                x = F.alpha_dropout(x.sin().cos().tan().exp().abs(), 0.5, True)
            return x

        self.assertExpectedInline(
            show(regions(f, X)),
            """sin cos tan exp abs_1 | sin_1 cos_1 tan_1 exp_1 abs_2 | sin_2 cos_2 tan_2 exp_2 abs_3 | sin_3 cos_3 tan_3 exp_3 abs_4""",
        )

    def test_a_value_written_inside_is_part_of_the_block(self):
        def f(x):
            for _ in range(4):
                t = x * 2
                t[:, 0] = 0.0
                x = t.sin().cos() + x
            return x

        self.assertExpectedInline(
            show(regions(f, X)),
            """t setitem sin cos x | t_1 setitem_1 sin_1 cos_1 x_1 | t_2 setitem_2 sin_2 cos_2 x_2 | t_3 setitem_3 sin_3 cos_3 x_3""",
        )

    def test_a_written_input_shrinks_the_block(self):
        def f(x, buffer):
            for _ in range(4):
                x = x.sin().cos().tan().exp().abs()
                buffer.add_(x)
            return x

        self.assertExpectedInline(
            show(regions(f, X, X.clone())),
            """sin cos tan exp x | sin_1 cos_1 tan_1 exp_1 x_1 | sin_2 cos_2 tan_2 exp_2 x_2 | sin_3 cos_3 tan_3 exp_3 x_3""",
        )

    def test_a_result_that_aliases_an_operand_stays_outside(self):
        def f(x):
            outs = []
            for _ in range(4):
                v = x.view(16)
                outs.append(v)
                x = v.sin().cos().tan().exp().abs().view(4, 4) * 2
            return x, outs

        self.assertExpectedInline(
            show(regions(f, X)),
            """sin cos tan exp abs_1 view_1 x | sin_1 cos_1 tan_1 exp_1 abs_2 view_3 x_1 | sin_2 cos_2 tan_2 exp_2 abs_3 view_5 x_2 | sin_3 cos_3 tan_3 exp_3 abs_4 view_7 x_3""",
        )

    def test_two_results_of_one_storage_do_not_both_cross(self):
        def f(x):
            outs = []
            for _ in range(4):
                y = x.sin().cos().tan().exp()
                outs += [y, y.t()]
                x = y.abs().relu().sigmoid().tanh()
            return x, outs

        self.assertExpectedInline(
            show(regions(f, X)),
            """\
abs_1 relu sigmoid x | abs_2 relu_1 sigmoid_1 x_1 | abs_3 relu_2 sigmoid_2 x_2 | abs_4 relu_3 sigmoid_3 x_3
sin cos tan y | sin_1 cos_1 tan_1 y_1 | sin_2 cos_2 tan_2 y_2 | sin_3 cos_3 tan_3 y_3""",
        )

    def test_no_grad_is_part_of_a_nodes_identity(self):
        def f(x):
            a = x.sin().cos().tan().exp()
            with torch.no_grad():
                b = x.sin().cos().tan().exp()
            return a, b

        self.assertEqual(regions(f, GRAD), [])

    def test_autocast_is_part_of_a_nodes_identity(self):
        def f(x):
            a = (x.sin() @ x).cos().tan()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                b = (x.sin() @ x).cos().tan()
            return a, b

        self.assertEqual(regions(f, X), [])

    def test_wiring_is_compared(self):
        def f(x, y):
            a = ((x.sin() + y).cos() * x).tan().exp()
            b = ((x.sin() + y).cos() * y).tan().exp()
            return a, b

        for group in regions(f, X, X.clone()):
            for region in group:
                self.assertNotIn("mul", region)

    def test_a_result_without_a_gradient_does_not_cross(self):
        def f(x):
            outs = []
            for _ in range(4):
                y = x.sin().cos().tan().exp()
                outs.append(y.detach())
                x = (y.detach() * x).relu().sigmoid().tanh().abs()
            return x, outs

        for group in regions(f, GRAD):
            for region in group:
                self.assertFalse({"exp", "exp_1", "exp_2"} & set(region))

    def test_what_leads_to_a_gradient_taken_in_the_graph_stays(self):
        def f(x):
            outs = []
            for _ in range(2):
                y = (x * 2).sin().cos().tan().exp()
                outs.append(torch.autograd.grad(y.sum(), x)[0])
            return outs

        with torch._dynamo.config.patch(trace_autograd_ops=True):
            self.assertEqual(regions(f, GRAD), [])

    def test_a_vmap_is_inside_as_a_whole_or_outside(self):
        def f(x):
            for _ in range(4):
                x = torch.vmap(lambda r: r.sin() * 2)(x).cos().tan()
            return x

        for group in regions(f, X):
            for region in group:
                self.assertEqual(sum("increment" in n for n in region), sum("decrement" in n for n in region))
                self.assertTrue(any("increment" in n for n in region))

    def test_a_block_of_a_deep_stack_is_cut_where_one_value_crosses(self):
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.up = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4)

            def forward(self, x):
                return x + self.up(F.gelu(self.up(self.norm(x))))

        class Stack(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = torch.nn.ModuleList(Block() for _ in range(4))
                self.norm = torch.nn.LayerNorm(4)

            def forward(self, x):
                for b in self.blocks:
                    x = b(x)
                return self.norm(x)

        self.assertExpectedInline(
            show(regions(Stack(), X)),
            """layer_norm_1 linear_2 gelu_1 linear_3 x_1 | layer_norm_2 linear_4 gelu_2 linear_5 x_2 | layer_norm_3 linear_6 gelu_3 linear_7 x_3""",
        )

    def test_regions_are_disjoint_runs_of_program_order(self):
        def f(x, w):
            for i in range(6):
                x = block(x, w) if i % 2 else block(x, w).exp().tanh() + x
            return x

        graph, tracker = tracked(f, X, W)
        order = GraphView(graph, tracker.written_operands).nodes
        found = [group.regions for group in tracker.find_groups(graph, {})]
        for groups in (found, tracker.get_identical_regions(graph)):
            seen = set()
            for group in groups:
                self.assertEqual(len({len(r) for r in group}), 1)
                for region in group:
                    start = order.index(region[0])
                    self.assertEqual(order[start : start + len(region)], region)
                    self.assertFalse(seen & set(region))
                    seen |= set(region)
            self.assertTrue(seen)


def _slope(x):
    y = x * 3
    return y - 1


def _ring(x, w):
    r = x.tanh() + w
    return r.exp() * x


class IdenticalRegionsTest(TestCase):
    """What the tracker answers by itself, however small."""

    def test_two_nodes_are_a_region(self):
        def f(x):
            return _slope(x).sum() + _slope(x.cos()).sum() - _slope(x.sin()).sum()

        found = identical(f, X)
        self.assertExpectedInline(show(found), """y sub | y_1 sub_1 | y_2 sub_2""")
        self.assertEqual(regions(f, X), [])

    def test_one_node_is_none(self):
        def plus(x):
            return x + 1

        self.assertEqual(identical(lambda x: plus(x).sin() - plus(x).cos(), X), [])

    def test_several_groups_stand_latest_first(self):
        def f(x, w):
            a = _slope(x)
            b = _ring(a, w)
            c = _ring(x, w)
            return _slope(b) @ c

        self.assertExpectedInline(
            show(identical(f, X, W)),
            """\
tanh r exp b | tanh_1 r_1 exp_1 c
y a | y_1 sub_1""",
        )

    def test_neighbours_that_feed_nothing_to_each_other_are_two_regions(self):
        def f(x, w):
            return [(_slope(x), _ring(w, x)) for x in (x, x.cos())]

        self.assertExpectedInline(
            show(identical(f, X, W)),
            """\
tanh r exp mul_1 | tanh_1 r_1 exp_1 mul_3
y sub | y_1 sub_1""",
        )

    def test_a_region_grows_while_all_of_its_group_do(self):
        def f(x):
            outs = []
            for start in (x.sin(), x.cos(), x.sin()):
                y = start.exp() if len(outs) < 2 else start.abs()
                outs.append((y * 2).tanh() / 3)
            return outs

        self.assertExpectedInline(
            show(identical(f, X)), """mul tanh truediv | mul_1 tanh_1 truediv_1 | mul_2 tanh_2 truediv_2"""
        )

    def test_arguments_in_nested_lists_and_dictionaries(self):
        def total(parts, how):
            first, (second, third) = parts
            joined = torch.cat([first, second], **how["cat"])
            return torch.block_diag(third["w"], *how["more"], joined).sum()

        def f(x, w):
            a = total([x, (w, {"w": x})], {"cat": {"dim": 1}, "more": [w, w]})
            b = total([w, (x, {"w": w})], {"cat": {"dim": 1}, "more": (x, x)})
            c = total([w, (x, {"w": w})], {"cat": {"dim": 0}, "more": (x, x)})
            return a, b, c

        self.assertExpectedInline(
            show(identical(f, X, W)),
            """joined block_diag a | joined_1 block_diag_1 b""",
        )

    def test_written_values_do_not_end_a_region(self):
        def add_to(t, x):
            t += x
            u = t.sin()
            u.mul_(2)
            return u.sum() * t

        def f(x, w):
            t = x.clone()
            return add_to(t, w), add_to(t, x)

        self.assertExpectedInline(show(identical(f, X, W)), """t_1 u mul_ sum_1 mul | t_2 u_1 mul__1 sum_2 mul_1""")

    def test_grad_modes_are_kept_apart(self):
        def f(x, w):
            a = _ring(x, w), _ring(x.cos(), w)
            with torch.no_grad():
                return a, _ring(x, w), _ring(x.sin(), w)

        self.assertExpectedInline(
            show(identical(f, X, W)),
            """\
tanh_2 r_2 exp_2 mul_2 | tanh_3 r_3 exp_3 mul_3
tanh r exp mul | tanh_1 r_1 exp_1 mul_1""",
        )

    def test_autocast_is_kept_apart(self):
        def f(x, w):
            a = _ring(x, w), _ring(x, x.cos())
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return a, _ring(x, w), _ring(x, x.sin())

        self.assertExpectedInline(
            show(identical(f, X, W)),
            """\
tanh_2 r_2 exp_2 mul_2 | tanh_3 r_3 exp_3 mul_3
tanh r exp mul | tanh_1 r_1 exp_1 mul_1""",
        )

    def test_another_instruction_is_another_node(self):
        def f(x):
            return (x * 3 - 1).sin() + (x * 3 - 1).cos()

        self.assertEqual(identical(f, X), [])

    def test_the_same_value_twice_is_other_wiring(self):
        def both(a, b):
            return (a * 2 + b).sin()

        def f(x, w):
            return both(x, x), both(w, w), both(x, w)

        for group in identical(f, X, W):
            self.assertNotIn("mul_2", [name for region in group for name in region])

    def test_what_other_operators_divide_is_identical_up_to_there(self):
        def f(x, w):
            outs = []
            for other in (w.sin, w.cos):
                y = x.exp() * 2
                w = other()
                outs.append((y + w).tanh())
            return outs

        self.assertExpectedInline(
            show(identical(f, X, W)),
            """\
add tanh | add_1 tanh_1
exp y | exp_1 y_1""",
        )

    def test_each_node_knows_those_that_are_identical_to_it(self):
        def f(x):
            return _slope(x) + _slope(x.cos())

        graph, tracker = tracked(f, X)
        by_name = {node.name: node for node in graph.nodes}
        duplicates = {node.name: [n.name for n in alike] for node, alike in tracker.node_to_duplicates.items()}
        self.assertEqual(duplicates["y"], ["y", "y_1"])
        self.assertEqual(duplicates["sub_1"], ["sub", "sub_1"])
        self.assertEqual(duplicates["cos"], ["cos"])
        tracker.track_node(None, by_name["y"])  # which is tracked already
        self.assertEqual(len(tracker.node_to_duplicates[by_name["y"]]), 2)


def test_a_tracked_setting_is_part_of_what_a_node_is():
    """Also those that let no operator into a body: the tracker does not ask what may be outlined."""

    def f(x, w):
        a = _ring(x, w), _ring(w, x)
        torch.use_deterministic_algorithms(True)
        b = _ring(x, w), _ring(w, x)
        torch.use_deterministic_algorithms(False)
        return a, b

    found = identical(f, X, W)
    assert [len(group) for group in found] == [2, 2]
    assert found[0][0][0] == "tanh_2" and found[1][0][0] == "tanh"
