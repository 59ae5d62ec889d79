"""Options of Inductor that a mark asks for are in force while its body is lowered, and nowhere else."""

import pytest
import torch
import torch._dynamo
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.utils._release import RELEASE


has_options = pytest.mark.skipif(RELEASE < (2, 15), reason="before 2.15, a mark has no options for Inductor")


def _options(forward, backward=None):
    from torch._higher_order_ops.invoke_subgraph import get_invoke_subgraph_compile_options

    return get_invoke_subgraph_compile_options(forward, bw_inductor_config_patches=backward)


def _code(*marks, grad=False):
    """The code of a program that calls a function under each of ``marks``, three times; held to eager."""

    def program(x):
        for mark in marks:
            for _ in range(3):
                x = mark(x)
        return x.exp()

    x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_(grad)
    torch._dynamo.reset()
    with fresh_cache():
        compiled = torch.compile(program, fullgraph=True)
        found, codes = run_and_get_code(lambda: _with_gradient(compiled, x))
    torch.testing.assert_close(found, _with_gradient(program, x))
    return codes


def _with_gradient(program, x):
    y = program(x)
    return (y, *torch.autograd.grad(y.sum(), [x])) if x.requires_grad else (y,)


def block(x):
    return x.sin() * 2 + x.cos()


@pytest.fixture(autouse=True)
def _regional():
    with torch._dynamo.config.patch(enable_invoke_subgraph_regional_compile=True):
        yield


@has_options
def test_the_body_is_lowered_under_them_and_the_rest_is_not():
    mark = torch.compiler.nested_compile_region
    (plain,) = _code(mark(block))
    assert "aten.sin.default(" not in plain
    (asked,) = _code(mark(block, options=_options({"fallback_by_default": True})))
    assert asked.count("aten.sin.default(") == 1 and "aten.exp.default(" not in asked


@has_options
def test_marks_with_other_options_are_other_bodies():
    mark = torch.compiler.nested_compile_region
    (code,) = _code(mark(block), mark(block, options=_options({"fallback_by_default": True})))
    assert code.count("aten.sin.default(") == 1


@has_options
def test_a_backward_has_its_own():
    mark = torch.compiler.nested_compile_region
    options = _options({}, {"fallback_by_default": True})
    forward, backward = _code(mark(block, options=options), grad=True)
    assert "aten.sin.default(" not in forward and "aten.sin.default(" in backward


def test_a_call_is_stamped_out_of_one_with_its_options():
    """A function that two marks have: the second one's calls took the first one's body, and its options."""
    from torch._higher_order_ops.invoke_subgraph import NestedCompileRegionOptions, mark_compile_region

    options = [NestedCompileRegionOptions(), NestedCompileRegionOptions()]
    marks = [mark_compile_region(block, options=each) for each in (*options, options[0], None)]
    seen = []

    def backend(gm, inputs):
        calls = gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
        seen.extend(gm.get_submodule(call.args[0].target).meta.get("nested_region_config") for call in calls)
        return gm.forward

    def program(x):
        for mark in marks:
            for _ in range(3):
                x = mark(x)
        return x

    torch._dynamo.reset()
    x = torch.linspace(-1, 1, 32).view(4, 8)
    torch.testing.assert_close(torch.compile(program, backend=backend, fullgraph=True)(x), program(x))
    first, second = options
    assert [*map(id, seen)] == [*map(id, [first] * 3 + [second] * 3 + [first] * 3 + [None] * 3)]
