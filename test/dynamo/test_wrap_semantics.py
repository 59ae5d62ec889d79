"""Operators that only run their body: what their subgraphs return, and what the program sees afterwards."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any, NamedTuple

import expecttest
import pytest
import torch._higher_order_ops.wrap as wrap_ops
import torch.utils._pytree as pytree
from torch._higher_order_ops.base_hop import BaseHOP
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import torch
import torch._dynamo
from torch._dynamo.variables import higher_order_ops as hops


BACKENDS = ("eager", "aot_eager", "inductor")
FAST = BACKENDS[:2]
wrap = wrap_ops.wrap
recompute = functools.partial(checkpoint, use_reentrant=False)


class RunBody(BaseHOP):
    """The smallest operator of its kind."""

    def __init__(self):
        super().__init__("run_body_for_test")

    def __call__(self, subgraph, *operands, **kwargs):
        return super().__call__(subgraph, *operands, **kwargs)


run_body = RunBody()


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any = None


class Named(NamedTuple):
    a: Any
    b: Any


class State:
    def __init__(self, **values):
        self.__dict__.update(values)


class Plain:
    def __init__(self, value):
        self.value = value
        self.log = []


for leafy, fields in ((Pair, ("first", "second")), (Plain, ("value", "log"))):
    pytree.register_pytree_node(
        leafy,
        lambda o, fields=fields: ([getattr(o, k) for k in fields], None),
        lambda v, _: v,
        serialized_type_name=f"test_wrap_semantics.{leafy.__name__}",
    )


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.fixture
def skip_side_effects():
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        yield


def tensors(requires_grad=True):
    torch.manual_seed(0)
    return [torch.randn(3, 3, requires_grad=requires_grad) for _ in range(2)]


def seen(function, state, inputs):
    """All that a call of ``function(*inputs, state)`` can be seen to do."""
    torch.manual_seed(1)
    result = function(*inputs, state)
    leaves, spec = pytree.tree_flatten((result, vars(state)))
    grads = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    if grads:
        sum((t.double() ** 2).sum() * (k + 1) for k, t in enumerate(grads)).backward()
    same = [[a is b for b in leaves if isinstance(b, torch.Tensor)] for a in leaves if isinstance(a, torch.Tensor)]
    plain = [(t.requires_grad, t.detach().clone()) if isinstance(t, torch.Tensor) else t for t in leaves]
    return str(spec), plain, same, [t.grad for t in inputs], list(inputs), torch.get_rng_state()


def same_as_eager(function, state=None, backend="eager", requires_grad=True, fullgraph=True, identity=True, calls=2):
    """Compiled or not, a function of two tensors and a state gives, changes and differentiates the same."""
    state = state or State()
    mine, eager_state = copy.deepcopy(state), copy.deepcopy(state)
    compiled = torch.compile(function, backend=backend, fullgraph=fullgraph)
    for _ in range(calls):
        wanted = seen(function, eager_state, tensors(requires_grad))
        got = seen(compiled, mine, tensors(requires_grad))
        assert got[0] == wanted[0]
        if identity:
            assert got[2] == wanted[2]
        for k in (1, 3, 4, 5):
            assert_same(got[k], wanted[k])


def assert_same(got, wanted):
    if isinstance(wanted, (list, tuple)):
        assert type(got) is type(wanted) and len(got) == len(wanted)
        for a, b in zip(got, wanted):
            assert_same(a, b)
    elif isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    else:
        assert type(got) is type(wanted) and got == wanted


def graphs_of(function, *args, **options):
    """The code of the graph that Dynamo makes, and of each subgraph."""
    made = []

    def backend(gm, _):
        made.append(gm)
        return gm

    torch.compile(function, backend=backend, fullgraph=True, **options)(*args)
    (gm,) = made
    found = {n or "graph": m for n, m in gm.named_modules() if isinstance(m, torch.fx.GraphModule)}

    def line(node):
        if node.op == "output":
            return f"return {node.args[0]}"
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        return f"{node.name} = {name}{tuple(node.args)}"

    return "\n".join(
        f"{name}({', '.join(n.name for n in m.graph.find_nodes(op='placeholder'))}):\n"
        + "\n".join("  " + line(n) for n in m.graph.nodes if n.op not in ("placeholder", "get_attr"))
        for name, m in found.items()
    )


def returns(function, *args, body="wrap_body_0"):
    """The last line of a body."""
    lines = graphs_of(function, *args).splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(body + "("))
    return next(line.strip() for line in lines[start:] if line.strip().startswith("return"))


def twice(y):
    return y, y


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


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sin()
        ctx.save_for_backward(x)
        return y, y

    @staticmethod
    def backward(ctx, g, h):
        return (g + 3 * h) * ctx.saved_tensors[0].cos()


def _double_all(body):
    def run(*args):
        out = body(*args)
        return tuple(2 * t for t in out) if isinstance(out, tuple) else 2 * out

    return run


def doubled(body, *args):
    return wrap_ops.dynamo_bypassing_wrapper(_double_all, body, *args)


def called(body, *args):
    """RunBody runs graphs only; a body of its own is called, which is what the operator means."""
    return run_body(body, *args) if torch.compiler.is_compiling() else body(*args)


OPERATORS = {"wrap": wrap, "checkpoint": recompute, "base_hop": called}
BODIES = {
    "a_tensor": lambda t, w: t.sin() @ w,
    "a_nested_dict": lambda t, w: {"a": {"b": [t.sin(), (t.cos(), None)]}, 3: w * 2, "n": 7},
    "a_dataclass": lambda t, w: Pair(t.sin(), Pair(w * t, 2)),
    "a_named_tuple": lambda t, w: Named(t.sin(), [w.cos()]),
    "a_user_object": lambda t, w: Plain(t.sin() + w),
    "None": lambda t, w: None,
    "ints_and_strings": lambda t, w: (t.size(0), t.dim(), "s", 1.5, True, t.dtype, t.sin()),
    "a_value_twice": lambda t, w: twice((t * w).sin()),
    "a_value_twice_in_objects": lambda t, w: (lambda y: [Pair(y, y), {"k": y}])(t.exp()),
    "its_input": lambda t, w: (t, t.sin(), w),
    "nothing_but_its_input": lambda t, w: t,
    "a_set_of_constants": lambda t, w: (frozenset({1, 2}), t.sin()),
    "a_chunk": lambda t, w: t.sin().split(1)[1],
}


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


# autograd.Function


def autograd_function(forward, backward):
    return type(
        "Made", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


def _save(ctx, *ts):
    ctx.save_for_backward(*ts)


def _marks_the_second(ctx, x, w):
    a, b = x * w, (x + w).detach() * 2
    _save(ctx, x, w)
    ctx.mark_non_differentiable(b)
    return a, b


FUNCTIONS = {
    "one_output": (
        lambda ctx, x, w: _save(ctx, x, w) or x * w,
        lambda ctx, g: (lambda x, w: (g * w, g * x))(*ctx.saved_tensors),
    ),
    "an_output_twice": (
        lambda ctx, x, w: _save(ctx, x, w) or twice(x * w),
        lambda ctx, g, h: (lambda x, w: ((g + 3 * h) * w, (g - h) * x))(*ctx.saved_tensors),
    ),
    "an_output_three_times_among_others": (
        lambda ctx, x, w: _save(ctx, x, w) or (lambda y: (y, None, x + w, y, "s", y))(x * w),
        lambda ctx, g, _, k, h, __, i: (
            (g + 3 * h + 5 * i) * ctx.saved_tensors[1] + k,
            (g - h) * ctx.saved_tensors[0] + 7 * k,
        ),
    ),
    "an_input": (lambda ctx, x, w: (x, x * w), lambda ctx, g, h: (g * 2 + h, h * 3)),
    "only_an_input": (lambda ctx, x, w: x, lambda ctx, g: (g * 2, None)),
    "an_input_twice": (lambda ctx, x, w: (x, w, x), lambda ctx, g, h, k: (g * 2 + 5 * k, h * 3)),
    "non_tensors": (
        lambda ctx, x, w: (3, x * w, None),
        lambda ctx, _, g, __: (g * 2, g * 3),
    ),
    "a_gradient_returned_as_it_came": (lambda ctx, x, w: (x + w, x * 2), lambda ctx, g, h: (g, g)),
    "a_saved_tensor_as_gradient": (
        lambda ctx, x, w: _save(ctx, x, w) or x * w,
        lambda ctx, g: (ctx.saved_tensors[1], ctx.saved_tensors[0]),
    ),
    "one_that_is_not_differentiable": (
        _marks_the_second,
        lambda ctx, g, h: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]),
    ),
}


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_autograd_function_returns(name, backend):
    made = autograd_function(*FUNCTIONS[name])
    if name == "an_input_twice" and backend == "aot_eager":
        pytest.skip("AOTAutograd takes two views of one value for views of its own making, and drops their backward")
    same_as_eager(lambda x, w, state: made.apply(x * 2, w * 3), backend=backend, identity=False)


def test_autograd_function_returns_a_value_twice_on_inductor():
    same_as_eager(lambda x, w, state: Twice.apply(x), backend="inductor", identity=False)


@pytest.mark.parametrize("backend", FAST)
def test_autograd_function_inside_a_checkpoint(backend):
    made = autograd_function(*FUNCTIONS["an_output_twice"])

    def function(x, w, state):
        return recompute(lambda t: Pair(made.apply(t * 2, w * 3), t), x)

    same_as_eager(function, backend=backend, identity=False)


# The bypassing wrapper, nested regions, local_map


@pytest.mark.parametrize("backend", FAST)
def test_the_bypassing_wrapper_changes_returned_inputs_too(backend):
    def function(x, w, state):
        def body(t):
            return (t, *twice(t.sin()))

        out = doubled(body, x) if torch.compiler.is_compiling() else _double_all(body)(x)
        return out, x * 3

    same_as_eager(function, backend=backend, identity=False)


@pytest.mark.parametrize("backend", FAST)
def test_a_marked_region_is_stamped_out_with_all_its_outputs(backend):
    region = torch.compiler.nested_compile_region(lambda t, w: (t.sin() @ w, t.cos()))

    def function(x, w, state):
        a, b = region(x, w)
        c, d = region(a, w)
        return c, d, b

    same_as_eager(function, backend=backend)


@pytest.fixture
def mapped():
    """``local_map`` of a body with two inputs and two outputs, over a mesh that does not communicate."""
    pytest.importorskip("torch.distributed.tensor")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import local_map
    from torch.distributed.tensor.placement_types import Replicate
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    placements = ([Replicate()], [Replicate()])

    def make(body):
        f = local_map(body, out_placements=placements, in_placements=placements, device_mesh=mesh)
        return lambda a, b: f(a, b)

    try:
        with hops.LocalMapWrappedHigherOrderVariable.enable():
            yield make
    finally:
        torch.distributed.destroy_process_group()


def test_local_map_keeps_its_inputs_and_outputs_in_order(mapped):
    assert returns(mapped(lambda a, b: (b.cos(), a.sin())), *tensors(), body="subgraph_0") == "return (cos, sin)"


@pytest.mark.parametrize("body", [lambda a, b: twice(a * b), lambda a, b: (a, b.sin())], ids=["twice", "input"])
def test_local_map_refuses_outputs_that_alias(body, mapped):
    with pytest.raises(torch._dynamo.exc.Unsupported, match="aliasing"):
        graphs_of(mapped(body), *tensors())


# The tracer as a function of its own


@pytest.mark.parametrize(
    "options", [{}, {"restore_side_effects": False}, {"under_activation_checkpoint": True}], ids=str
)
@pytest.mark.parametrize("body", ["a_nested_dict", "a_user_object", "a_value_twice_in_objects", "its_input"])
def test_the_tracer_by_itself(body, options, monkeypatch):
    def speculate(*args, **kwargs):
        for name in ("allow_side_effects", "filter_aliased_intermediates"):
            kwargs.pop(name)
        found = hops.speculate_subgraph_with_wrap_semantics(*args, **options, **kwargs)
        assert len(found) == 4
        return *found, hops.SubgraphTracingInfo()

    monkeypatch.setattr(hops, "speculate_subgraph_with_auto_output_flattening", speculate)
    same_as_eager(lambda x, w, state: (wrap(BODIES[body], x, w), x * 2))


# What a failed trace leaves behind


class Watched:
    """Records what tracing a body left in the side effects, when it failed."""

    def __init__(self, monkeypatch):
        self.left = []
        real = hops.speculate_subgraph_with_auto_output_flattening

        def spy(tx, *args, **kwargs):
            effects = tx.output.side_effects
            before = self.state(effects)
            try:
                return real(tx, *args, **kwargs)
            except torch._dynamo.exc.Unsupported:
                assert tx.output.side_effects is effects
                self.left.append((before, self.state(effects)))
                raise

        monkeypatch.setattr(hops, "speculate_subgraph_with_auto_output_flattening", spy)

    @staticmethod
    def state(effects):
        mutations = {k: dict(v) for k, v in effects.store_attr_mutations.items()}
        new = [v for v in effects.id_to_variable.values() if type(v.mutation_type).__name__.endswith("New")]
        assert {id(x) for x in effects.keepalive} <= set(effects.id_to_variable)
        return mutations, new, list(effects.tensor_hooks), list(effects.mutated_sources)


def test_a_body_that_breaks_takes_its_side_effects_back(monkeypatch, skip_side_effects):
    watched = Watched(monkeypatch)

    def body(t, state):
        state.n = 5
        state.pair = Pair(t.sin())
        torch._dynamo.graph_break()
        return state.pair.first * state.n

    def function(x, w, state):
        state.n = 2
        return recompute(body, x * state.n, state)

    same_as_eager(function, State(n=1), fullgraph=False, calls=1)
    assert watched.left
    for before, after in watched.left:
        assert before == after


def test_the_flag_of_visible_side_effects_is_put_back_by_an_exception(monkeypatch):
    flags = []
    real = torch._dynamo.output_graph.OutputGraph.subtracer
    tracers = []

    def remember(self, *args, **kwargs):
        manager = real(self, *args, **kwargs)
        enter = manager.__enter__

        class Manager:
            def __enter__(_):
                tracers.append(enter())
                return tracers[-1]

            def __exit__(_, *exc_info):
                flags.append(tracers[-1].traced_with_externally_visible_side_effects)
                return manager.__exit__(*exc_info)

        return Manager()

    monkeypatch.setattr(torch._dynamo.output_graph.OutputGraph, "subtracer", remember)

    def body(t, log):
        torch._dynamo.utils._disable_side_effect_safety_checks_for_current_subtracer(log.append, 1)
        torch._dynamo.graph_break()
        return t.sin()

    torch.compile(lambda x, log: recompute(body, x, log), backend="eager")(tensors()[0], [])
    assert flags and not any(flags)
