"""Operators that look at the positions of their outputs: autograd.Function, the bypassing wrapper, local_map."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from testing.wrap_programs import (
    FAST,
    Pair,
    Twice,
    double_all,
    doubled,
    graphs_of,
    recompute,
    returns,
    same_as_eager,
    tensors,
    twice,
)
from torch._dynamo.variables import higher_order_ops as hops


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

        out = doubled(body, x) if torch.compiler.is_compiling() else double_all(body)(x)
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
