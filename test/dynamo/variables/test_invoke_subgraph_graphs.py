"""The graph and the bodies that marked regions become."""

import pytest
import torch
import torch._dynamo
from expecttest import TestCase
from testing.marked_cases import became, compiled
from torch._dynamo.regions.outcomes import outcomes
from torch.utils.checkpoint import checkpoint


region = torch.compiler.nested_compile_region
X = torch.arange(16.0).view(4, 4) / 16
pytestmark = pytest.mark.usefixtures("bodies")


def graph(f, *args):
    """The graph and the bodies that a backend gets for ``f``."""
    seen = []

    def backend(gm, _):
        seen.append(gm.print_readable(print_output=False))
        return gm.forward

    torch.compile(f, backend=backend, fullgraph=True)(*args)
    lines = [line.split("#")[0].rstrip() for line in seen[0].splitlines()]
    return "\n".join(line for line in lines if line)


def assert_in_order(text, *parts):
    at = -1
    for part in parts:
        at = text.index(part, at + 1)


class RegionGraphTest(TestCase):
    def test_an_output_carries_the_name_of_the_operator_that_made_it(self):
        @region
        def r(x, y):
            return (x @ y).sin(), x.max(0)[0], (y @ x).cos() @ y

        self.assertExpectedInline(
            graph(lambda x, y: (*r(x, y), *r(y, x)), X, X.clone()),
            """\
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, 4]", L_y_: "f32[4, 4]"):
        l_x_ = L_x_
        l_y_ = L_y_
        subgraph_0 = self.subgraph_0
        invoke_subgraph = torch.ops.higher_order.invoke_subgraph(subgraph_0, 'subgraph_0', l_x_, l_y_);  subgraph_0 = None
        getitem: "f32[4, 4]" = invoke_subgraph[0]
        getitem_1: "f32[4]" = invoke_subgraph[1]
        getitem_2: "f32[4, 4]" = invoke_subgraph[2];  invoke_subgraph = None
        subgraph_1 = self.subgraph_0
        invoke_subgraph_1 = torch.ops.higher_order.invoke_subgraph(subgraph_1, 'subgraph_0', l_y_, l_x_);  subgraph_1 = l_y_ = l_x_ = None
        getitem_3: "f32[4, 4]" = invoke_subgraph_1[0]
        getitem_4: "f32[4]" = invoke_subgraph_1[1]
        getitem_5: "f32[4, 4]" = invoke_subgraph_1[2];  invoke_subgraph_1 = None
        return (getitem, getitem_1, getitem_2, getitem_3, getitem_4, getitem_5)
    class subgraph_0(torch.nn.Module):
        def forward(self, l_x_: "f32[4, 4]", l_y_: "f32[4, 4]"):
            matmul: "f32[4, 4]" = l_x_ @ l_y_
            sin: "f32[4, 4]" = matmul.sin();  matmul = None
            max_1 = l_x_.max(0)
            getitem: "f32[4]" = max_1[0]
            getitem_1: "i64[4]" = max_1[1];  max_1 = getitem_1 = None
            matmul_1: "f32[4, 4]" = l_y_ @ l_x_;  l_x_ = None
            cos: "f32[4, 4]" = matmul_1.cos();  matmul_1 = None
            matmul_2: "f32[4, 4]" = cos @ l_y_;  cos = l_y_ = None
            return (sin, getitem, matmul_2)""",
        )

    def test_a_value_returned_twice_is_one_output(self):
        @region
        def r(x):
            y = x.sin() + 1
            return y, y, {"again": y}

        def f(x):
            a, b, c = r(x)
            return a * b * c["again"], r(a)

        self.assertExpectedInline(
            graph(f, X),
            """\
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, 4]"):
        l_x_ = L_x_
        subgraph_0 = self.subgraph_0
        invoke_subgraph = torch.ops.higher_order.invoke_subgraph(subgraph_0, 'subgraph_0', l_x_);  subgraph_0 = l_x_ = None
        getitem: "f32[4, 4]" = invoke_subgraph[0];  invoke_subgraph = None
        mul: "f32[4, 4]" = getitem * getitem
        mul_1: "f32[4, 4]" = mul * getitem;  mul = None
        subgraph_1 = self.subgraph_0
        invoke_subgraph_1 = torch.ops.higher_order.invoke_subgraph(subgraph_1, 'subgraph_0', getitem);  subgraph_1 = getitem = None
        getitem_1: "f32[4, 4]" = invoke_subgraph_1[0];  invoke_subgraph_1 = None
        return (mul_1, getitem_1)
    class subgraph_0(torch.nn.Module):
        def forward(self, l_x_: "f32[4, 4]"):
            sin: "f32[4, 4]" = l_x_.sin();  l_x_ = None
            y: "f32[4, 4]" = sin + 1;  sin = None
            return (y,)""",
        )

    def test_an_input_and_a_captured_value_are_no_outputs(self):
        w = torch.ones(4, 4)

        @region
        def r(x):
            return x, w, (x @ w).cos()

        def f(x):
            a, b, c = r(x)
            return a + b + c, r(c)

        self.assertExpectedInline(
            graph(f, X),
            """\
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, 4]", L_r_closure_0_cell_contents_closure_0_cell_contents: "f32[4, 4]"):
        l_x_ = L_x_
        l_r_closure_0_cell_contents_closure_0_cell_contents = L_r_closure_0_cell_contents_closure_0_cell_contents
        subgraph_0 = self.subgraph_0
        invoke_subgraph = torch.ops.higher_order.invoke_subgraph(subgraph_0, 'subgraph_0', l_x_, l_r_closure_0_cell_contents_closure_0_cell_contents);  subgraph_0 = None
        c: "f32[4, 4]" = invoke_subgraph[0];  invoke_subgraph = None
        add: "f32[4, 4]" = l_x_ + l_r_closure_0_cell_contents_closure_0_cell_contents;  l_x_ = None
        add_1: "f32[4, 4]" = add + c;  add = None
        subgraph_1 = self.subgraph_0
        invoke_subgraph_1 = torch.ops.higher_order.invoke_subgraph(subgraph_1, 'subgraph_0', c, l_r_closure_0_cell_contents_closure_0_cell_contents);  subgraph_1 = l_r_closure_0_cell_contents_closure_0_cell_contents = None
        getitem_1: "f32[4, 4]" = invoke_subgraph_1[0];  invoke_subgraph_1 = None
        return (add_1, c, getitem_1)
    class subgraph_0(torch.nn.Module):
        def forward(self, l_x_: "f32[4, 4]", l_r_closure_0_cell_contents_closure_0_cell_contents: "f32[4, 4]"):
            matmul: "f32[4, 4]" = l_x_ @ l_r_closure_0_cell_contents_closure_0_cell_contents;  l_x_ = l_r_closure_0_cell_contents_closure_0_cell_contents = None
            cos: "f32[4, 4]" = matmul.cos();  matmul = None
            return (cos,)""",
        )

    def test_a_value_that_nobody_uses_is_no_output(self):
        @region
        def r(x):
            y = x.sin()
            return y, y * 2, {"c": y.cos()}

        def f(x):
            return r(x)[1], r(x.t())[1]

        self.assertExpectedInline(
            graph(f, X),
            """\
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, 4]"):
        l_x_ = L_x_
        subgraph_0 = self.subgraph_0
        invoke_subgraph = torch.ops.higher_order.invoke_subgraph(subgraph_0, 'subgraph_0', l_x_);  subgraph_0 = None
        getitem: "f32[4, 4]" = invoke_subgraph[0];  invoke_subgraph = None
        t: "f32[4, 4]" = l_x_.t();  l_x_ = None
        subgraph_1 = self.subgraph_1
        invoke_subgraph_1 = torch.ops.higher_order.invoke_subgraph(subgraph_1, 'subgraph_1', t);  subgraph_1 = t = None
        getitem_1: "f32[4, 4]" = invoke_subgraph_1[0];  invoke_subgraph_1 = None
        return (getitem, getitem_1)
    class subgraph_0(torch.nn.Module):
        def forward(self, l_x_: "f32[4, 4]"):
            y: "f32[4, 4]" = l_x_.sin();  l_x_ = None
            mul: "f32[4, 4]" = y * 2
            cos: "f32[4, 4]" = y.cos();  y = cos = None
            return (mul,)
    class subgraph_1(torch.nn.Module):
        def forward(self, t: "f32[4, 4]"):
            y: "f32[4, 4]" = t.sin();  t = None
            mul: "f32[4, 4]" = y * 2
            cos: "f32[4, 4]" = y.cos();  y = cos = None
            return (mul,)""",
        )

    def test_a_view_of_an_input_or_an_output_is_made_outside(self):
        @region
        def r(x):
            y = x.sin() * 2
            return x.view(16), y, y.t()

        def f(x):
            a, b, c = r(x)
            d, e, g = r(b)
            return a.sum() + d.sum(), c + g

        self.assertExpectedInline(
            graph(f, X),
            """\
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, 4]"):
        l_x_ = L_x_
        subgraph_0 = self.subgraph_0
        invoke_subgraph = torch.ops.higher_order.invoke_subgraph(subgraph_0, 'subgraph_0', l_x_);  subgraph_0 = None
        getitem: "f32[4, 4]" = invoke_subgraph[0];  invoke_subgraph = None
        a: "f32[16]" = l_x_.view(16);  l_x_ = None
        c: "f32[4, 4]" = getitem.t()
        subgraph_1 = self.subgraph_0
        invoke_subgraph_1 = torch.ops.higher_order.invoke_subgraph(subgraph_1, 'subgraph_0', getitem);  subgraph_1 = None
        getitem_1: "f32[4, 4]" = invoke_subgraph_1[0];  invoke_subgraph_1 = None
        d: "f32[16]" = getitem.view(16);  getitem = None
        g: "f32[4, 4]" = getitem_1.t();  getitem_1 = None
        sum_1: "f32[]" = a.sum();  a = None
        sum_2: "f32[]" = d.sum();  d = None
        add: "f32[]" = sum_1 + sum_2;  sum_1 = sum_2 = None
        add_1: "f32[4, 4]" = c + g;  c = g = None
        return (add, add_1)
    class subgraph_0(torch.nn.Module):
        def forward(self, l_x_: "f32[4, 4]"):
            sin: "f32[4, 4]" = l_x_.sin();  l_x_ = None
            y: "f32[4, 4]" = sin * 2;  sin = None
            return (y,)""",
        )

    def test_a_checkpointed_value_returned_twice_is_one_output(self):
        def g(x):
            y = x.sin()
            return y, y

        def f(x):
            a, b = checkpoint(g, x, use_reentrant=False)
            return a + b

        self.assertExpectedInline(
            graph(f, X.clone().requires_grad_()),
            """\
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, 4]"):
        l_x_ = L_x_
        wrap_body_0 = self.wrap_body_0
        tag_activation_checkpoint = torch.ops.higher_order.tag_activation_checkpoint(wrap_body_0, l_x_, use_reentrant = False);  wrap_body_0 = l_x_ = None
        getitem: "f32[4, 4]" = tag_activation_checkpoint[0];  tag_activation_checkpoint = None
        add: "f32[4, 4]" = getitem + getitem;  getitem = None
        return (add,)
    class wrap_body_0(torch.nn.Module):
        def forward(self, l_x_: "f32[4, 4]"):
            y: "f32[4, 4]" = l_x_.sin();  l_x_ = None
            return (y,)""",
        )

    def test_a_nested_region_is_a_call_in_the_body(self):
        @region
        def inner(x):
            return x.sin() + 1

        @region
        def outer(x):
            return inner(inner(x) * 2)

        self.assertExpectedInline(
            graph(lambda x: outer(outer(x)), X),
            """\
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4, 4]"):
        l_x_ = L_x_
        subgraph_1 = self.subgraph_1
        invoke_subgraph = torch.ops.higher_order.invoke_subgraph(subgraph_1, 'subgraph_1', l_x_);  subgraph_1 = l_x_ = None
        getitem: "f32[4, 4]" = invoke_subgraph[0];  invoke_subgraph = None
        subgraph_2 = self.subgraph_1
        invoke_subgraph_1 = torch.ops.higher_order.invoke_subgraph(subgraph_2, 'subgraph_1', getitem);  subgraph_2 = getitem = None
        getitem_1: "f32[4, 4]" = invoke_subgraph_1[0];  invoke_subgraph_1 = None
        return (getitem_1,)
    class subgraph_1(torch.nn.Module):
        def forward(self, l_x_: "f32[4, 4]"):
            subgraph_0 = self.subgraph_0
            invoke_subgraph = torch.ops.higher_order.invoke_subgraph(subgraph_0, 'subgraph_0', l_x_);  subgraph_0 = l_x_ = None
            getitem: "f32[4, 4]" = invoke_subgraph[0];  invoke_subgraph = None
            mul: "f32[4, 4]" = getitem * 2;  getitem = None
            subgraph_1 = self.subgraph_0
            invoke_subgraph_1 = torch.ops.higher_order.invoke_subgraph(subgraph_1, 'subgraph_0', mul);  subgraph_1 = mul = None
            getitem_1: "f32[4, 4]" = invoke_subgraph_1[0];  invoke_subgraph_1 = None
            return (getitem_1,)
        class subgraph_0(torch.nn.Module):
            def forward(self, l_x_: "f32[4, 4]"):
                sin: "f32[4, 4]" = l_x_.sin();  l_x_ = None
                add: "f32[4, 4]" = sin + 1;  sin = None
                return (add,)""",
        )


def test_an_element_of_a_tuple_that_the_graph_returns_is_no_view():
    @region
    def r(x):
        return x.sin().max(0)[0], x.topk(2)[1], x.cos().aminmax()

    compiled(lambda x: (r(x), r(x * 2)), X)
    assert became() == ["TRACED", "TRACED"]
    assert outcomes()[0].detail == outcomes()[1].detail == "bodies of [11] operators"


def test_a_view_in_a_tuple_that_the_graph_returns_is_made_outside():
    @region
    def r(x):
        return (x.sin() * 2).cos().tan().chunk(2)

    assert_in_order(graph(lambda x: (r(x), r(x * 2)), X), "invoke_subgraph", ".chunk(2)", "class subgraph_0", ".sin()")


def test_a_body_is_not_called_both_by_a_graph_and_inside_another_body():
    """AOTAutograd would not find the inner one, which it has traced as part of the outer."""

    @region
    def inner(x):
        return x.sin() + 1

    @region
    def outer(x):
        return inner(inner(x) * 2).cos()

    with torch.no_grad():
        result = torch.compile(lambda x: outer(x) + inner(x), backend="aot_eager")(X)
    torch.testing.assert_close(result, outer(X) + inner(X))
    assert sorted(became()) == ["REUSED"] * 2 + ["TRACED"] * 2


def test_what_a_body_calls_is_found_when_the_body_was_put_back_into_the_graph():
    """A body that is called once goes away, and what it calls is then called at two levels of nesting."""
    inner = region(lambda x, i: (x.sin() if i < 2 else x.cos(), i + 1))

    @region
    def outer(x, i):
        x, i = inner(x, i)
        return inner(x * 2, i)

    def f(x):
        for i in range(4):
            x, _ = outer(x, i)
        return x

    seen = []
    for run in (f, torch.compile(f, backend="aot_eager", fullgraph=True)):
        x = X.clone().requires_grad_()
        run(x).sum().backward()
        seen.append(x.grad)
    torch.testing.assert_close(*seen)


def test_a_body_that_is_called_once_is_inlined_by_stocks_setting():
    @region
    def r(x):
        return x.sin() + 1

    with torch._dynamo.config.patch(inline_single_use_invoke_subgraph=True):
        assert "invoke_subgraph" not in graph(lambda x: r(x) * 2, X)
    assert became() == ["TRACED"]
