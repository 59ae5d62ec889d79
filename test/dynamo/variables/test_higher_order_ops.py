"""Operators that only run their body: what their subgraphs return, and what the program sees afterwards."""

from __future__ import annotations

import functools

import expecttest
import pytest
import torch
import torch._dynamo
from testing.wrap_programs import (
    BODIES,
    FAST,
    OPERATORS,
    Named,
    Pair,
    Plain,
    State,
    Twice,
    doubled,
    graphs_of,
    recompute,
    run_body,
    same_as_eager,
    tensors,
    twice,
    wrap,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


class TestGraphs(expecttest.TestCase):
    def graph(self, function):
        return graphs_of(function, *tensors())

    def test_each_output_carries_the_name_of_its_operator(self):
        self.assertExpectedInline(
            self.graph(lambda x, w: wrap(lambda t: (t.sin(), [t.split(1)[1]], t @ t @ t), x)),
            """\
graph(l_x_):
  wrap = wrap(wrap_body_0, l_x_)
  getitem = getitem(wrap, 0)
  getitem_1 = getitem(wrap, 1)
  getitem_2 = getitem(wrap, 2)
  return (getitem, getitem_1, getitem_2)
wrap_body_0(l_x_):
  sin = sin(l_x_,)
  split = split(l_x_, 1)
  getitem = getitem(split, 0)
  getitem_1 = getitem(split, 1)
  getitem_2 = getitem(split, 2)
  matmul = matmul(l_x_, l_x_)
  matmul_1 = matmul(matmul, l_x_)
  return (sin, getitem_1, matmul_1)""",
        )

    def test_a_value_returned_twice_is_one_output(self):
        self.assertExpectedInline(
            self.graph(lambda x, w: wrap(lambda t: twice(t.sin()), x)),
            """\
graph(l_x_):
  wrap = wrap(wrap_body_0, l_x_)
  getitem = getitem(wrap, 0)
  return (getitem,)
wrap_body_0(l_x_):
  sin = sin(l_x_,)
  return (sin,)""",
        )

    def test_a_returned_input_goes_around_the_call(self):
        self.assertExpectedInline(
            self.graph(lambda x, w: wrap(lambda t: (t, t.sin()), x)),
            """\
graph(l_x_):
  wrap = wrap(wrap_body_0, l_x_)
  getitem = getitem(wrap, 0)
  return (getitem,)
wrap_body_0(l_x_):
  sin = sin(l_x_,)
  return (sin,)""",
        )

    def test_a_returned_capture_is_not_lifted(self):
        self.assertExpectedInline(
            self.graph(lambda x, w: (lambda v: wrap(lambda t: (v, t.sin()), x))(w.exp())),
            """\
graph(l_w_, l_x_):
  exp = exp(l_w_,)
  wrap = wrap(wrap_body_0, l_x_)
  getitem = getitem(wrap, 0)
  return (exp, getitem)
wrap_body_0(l_x_):
  sin = sin(l_x_,)
  return (sin,)""",
        )

    def test_a_value_from_two_levels_up_goes_around_both_calls(self):
        self.assertExpectedInline(
            self.graph(lambda x, w: (lambda v: wrap(lambda t: wrap(lambda u: (v, t, u.cos()), t.sin()), x))(w.exp())),
            """\
graph(l_w_, l_x_):
  exp = exp(l_w_,)
  wrap = wrap(wrap_body_1, l_x_)
  getitem = getitem(wrap, 0)
  return (exp, getitem)
wrap_body_1(l_x_):
  sin = sin(l_x_,)
  wrap = wrap(wrap_body_0, sin)
  getitem = getitem(wrap, 0)
  return (getitem,)
wrap_body_1.wrap_body_0(sin):
  cos = cos(sin,)
  return (cos,)""",
        )

    def test_checkpoint_has_one_getitem_for_a_value_returned_twice(self):
        self.assertExpectedInline(
            self.graph(lambda x, w: recompute(lambda t: twice(t.sin()), x)),
            """\
graph(l_x_):
  tag_activation_checkpoint = tag_activation_checkpoint(wrap_body_0, l_x_)
  getitem = getitem(tag_activation_checkpoint, 0)
  return (getitem,)
wrap_body_0(l_x_):
  sin = sin(l_x_,)
  return (sin,)""",
        )

    def test_a_tensor_in_containers_of_every_kind_is_one_output(self):
        def body(t):
            y = t.cos()
            return {"a": [y, (None, 3)], "b": Pair(y, Named(y, "s")), "c": Plain(y)}

        self.assertExpectedInline(
            self.graph(lambda x, w: recompute(body, x)["c"].value),
            """\
graph(l_x_):
  tag_activation_checkpoint = tag_activation_checkpoint(wrap_body_0, l_x_)
  getitem = getitem(tag_activation_checkpoint, 0)
  return (getitem,)
wrap_body_0(l_x_):
  y = cos(l_x_,)
  return (y,)""",
        )

    def test_autograd_function_keeps_the_position_of_a_value_returned_twice(self):
        self.assertExpectedInline(
            self.graph(lambda x, w: Twice.apply(x)),
            """\
graph(l_x_):
  autograd_function_apply = autograd_function_apply(fwd_body_0, bwd_body_0, l_x_)
  getitem = getitem(autograd_function_apply, 0)
  getitem_1 = getitem(autograd_function_apply, 1)
  return (getitem, getitem_1)
fwd_body_0(l_x_):
  _set_grad_enabled = _set_grad_enabled(False,)
  y = sin(l_x_,)
  _set_grad_enabled_1 = _set_grad_enabled(True,)
  return ((y, y), (l_x_,))
bwd_body_0(g, h, l_x_):
  _set_grad_enabled = _set_grad_enabled(False,)
  mul = mul(3, h)
  add = add(g, mul)
  cos = cos(l_x_,)
  mul_1 = mul(add, cos)
  _set_grad_enabled_1 = _set_grad_enabled(True,)
  return (mul_1,)""",
        )

    def test_the_bypassing_wrapper_keeps_returned_inputs(self):
        self.assertExpectedInline(
            self.graph(lambda x, w: doubled(lambda t: (t, *twice(t.sin())), x)),
            """\
graph(l_x_):
  dynamo_bypassing_wrapper = dynamo_bypassing_wrapper('_dynamo_bypassing_wrapper_fn', wrap_body_0, l_x_)
  getitem = getitem(dynamo_bypassing_wrapper, 0)
  getitem_1 = getitem(dynamo_bypassing_wrapper, 1)
  getitem_2 = getitem(dynamo_bypassing_wrapper, 2)
  return (getitem, getitem_1, getitem_2)
wrap_body_0(l_x_):
  sin = sin(l_x_,)
  return (l_x_, sin, sin)""",
        )

    def test_an_operator_without_aliasing_may_return_its_input(self):
        self.assertExpectedInline(
            self.graph(lambda x, w: run_body(lambda t: (t, t.sin()), x)),
            """\
graph(l_x_):
  run_body_for_test = run_body_for_test(subgraph_0, l_x_)
  getitem = getitem(run_body_for_test, 0)
  return (getitem,)
subgraph_0(l_x_):
  sin = sin(l_x_,)
  return (sin,)""",
        )

    def test_side_effects_return_only_what_is_used_outside(self):
        def body(t, log):
            y = t.sin()
            log.append(y)
            return y.cos().exp()

        def function(x, w):
            log = []
            return recompute(body, x, log), log[0]

        with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
            self.assertExpectedInline(
                self.graph(function),
                """\
graph(l_x_):
  tag_activation_checkpoint = tag_activation_checkpoint(wrap_body_0, l_x_)
  getitem_3 = getitem(tag_activation_checkpoint, 0)
  getitem_4 = getitem(tag_activation_checkpoint, 1)
  return (getitem_3, getitem_4)
wrap_body_0(l_x_):
  y = sin(l_x_,)
  cos = cos(y,)
  exp = exp(cos,)
  return (exp, y)""",
            )


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("body", BODIES)
def test_a_body_may_return(body, operator, backend):
    def function(x, w, state):
        return OPERATORS[operator](BODIES[body], x, w), x * 2

    same_as_eager(function, backend=backend)


@pytest.mark.parametrize("operator", ["wrap", "checkpoint"])
@pytest.mark.parametrize(
    "body", ["a_nested_dict", "a_value_twice_in_objects", "its_input", "nothing_but_its_input", "None"]
)
def test_inductor_compiles_what_a_body_returns(body, operator):
    same_as_eager(lambda x, w, state: (OPERATORS[operator](BODIES[body], x, w), x * 2), backend="inductor")


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("operator", ["wrap", "checkpoint"])
@pytest.mark.parametrize(
    "body",
    [
        lambda t, w: (t.view(9), t.sin()),
        lambda t, w: t.t(),
        lambda t, w: (lambda y: (y, y.t(), y[0]))(t.sin()),
        lambda t, w: t[1:],
    ],
    ids=["input_view_and_value", "input_view", "own_views", "slice"],
)
def test_a_body_may_return_a_view(body, operator, backend):
    same_as_eager(lambda x, w, state: (OPERATORS[operator](body, x * 2, w), x * 2), backend=backend)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("operator", ["wrap", "checkpoint"])
def test_a_body_that_writes_its_input_and_returns_it(operator, backend):
    def body(t):
        t.add_(1)
        return t

    def function(x, w, state):
        h = x * 2
        out = OPERATORS[operator](body, h)
        return out * 3, h.sin()

    same_as_eager(function, backend=backend, requires_grad=False)


@pytest.mark.parametrize("backend", FAST)
def test_a_body_may_return_symbolic_ints(backend):
    def body(t):
        n = t.size(0)
        return n, n * 2, {"n": n}, t.sin().reshape(n * n)

    def function(x, w, state):
        n, m, d, y = recompute(body, x)
        return y * n + m + d["n"]

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
    for size in (3, 5):
        x = torch.randn(size, size)
        torch.testing.assert_close(compiled(x, None, None), function(x, None, None))


def test_a_body_may_return_a_set_and_a_dict_with_tensor_keys():
    def body(t):
        y, z = t.sin(), t.cos()
        return {y}, {z: 1}

    def function(x, w, state):
        a, b = recompute(body, x)
        return next(iter(a)) + next(iter(b))

    same_as_eager(function)


# Checkpoint


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(
    "options",
    [
        {"preserve_rng_state": False},
        {"preserve_rng_state": True},
        {"determinism_check": "none"},
    ],
    ids=str,
)
def test_checkpoint_with_options(options, backend):
    def function(x, w, state):
        return recompute(lambda t: Pair(torch.nn.functional.relu(t @ w), t), x, **options)

    same_as_eager(function, backend=backend)


def _save_products(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
def test_checkpoint_with_a_selective_context(backend):
    context_fn = functools.partial(create_selective_checkpoint_contexts, _save_products)

    def function(x, w, state):
        return recompute(lambda t: twice((t @ w).sin() @ w), x, context_fn=context_fn)

    same_as_eager(function, backend=backend)


@pytest.mark.parametrize("backend", FAST)
class TestCheckpointWithSideEffects:
    """Each body leaves something outside, which the program then uses."""

    @pytest.fixture(autouse=True)
    def _allowed(self, skip_side_effects):
        pass

    def check(self, function, backend, **state):
        same_as_eager(function, State(**state), backend, calls=1, identity=False)

    def test_a_list_outside_is_appended_to(self, backend):
        def body(t, log):
            y = t.sin()
            log.append(y)
            return y.cos()

        self.check(lambda x, w, state: (recompute(body, x, state.log), state.log[0] * 2), backend, log=[])

    def test_an_attribute_outside_is_set(self, backend):
        def body(t, state):
            state.kept = t.sin()
            return {"out": state.kept.cos()}

        self.check(lambda x, w, state: (recompute(body, x, state), state.kept.exp()), backend)

    def test_a_user_object_takes_an_intermediate_along(self, backend):
        def body(t, state):
            pair = Pair(t.sin())
            state.pair = pair
            return Plain(pair.first.cos())

        self.check(lambda x, w, state: (recompute(body, x, state), state.pair.first * w), backend)

    def test_what_an_inner_checkpoint_appends_survives_the_outer_one(self, backend):
        def inner(t, log):
            y = t.sin()
            log.append(y)
            return y.cos()

        def outer(t, log):
            return recompute(inner, t.exp(), log) * 2

        self.check(lambda x, w, state: (recompute(outer, x, state.log), state.log[0] * w), backend, log=[])

    def test_what_a_side_effect_takes_from_an_autograd_function_is_returned(self, backend):
        def body(t, log):
            first, second = Twice.apply(t)
            log.append(second)
            return first.cos()

        self.check(lambda x, w, state: (recompute(body, x * 2, state.log), state.log[0] * w), backend, log=[])

    def test_an_appended_input_goes_around_the_call(self, backend):
        def body(t, log):
            log.append(t)
            return t, t.sin()

        self.check(lambda x, w, state: (recompute(body, x * 2, state.log), state.log[0] * 3), backend, log=[])

    def test_a_dict_outside_is_updated_by_each_call(self, backend):
        def body(t, seen):
            seen[len(seen)] = t.sin()
            return seen[0] + t

        def function(x, w, state):
            return recompute(body, recompute(body, x, state.seen), state.seen), state.seen[1]

        self.check(function, backend, seen={})

    def test_a_raised_exception_keeps_what_came_before_it(self, backend):
        def body(t, state):
            state.n = 5
            raise ValueError("no")

        def function(x, w, state):
            try:
                return recompute(body, x, state)
            except ValueError:
                return x * state.n

        self.check(function, backend, n=1)


def test_checkpoint_falls_back_where_side_effects_are_not_allowed():
    def body(t, log):
        log.append(1)
        return t.sin()

    function = torch.compile(lambda x, log: recompute(body, x, log), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Mutating a variable from outside"):
        function(tensors()[0], [])
