"""Marked and unmarked do the same: hooks, subclasses, transforms, modes, random numbers, other operators with bodies."""

import pytest
import torch
import torch.nn.functional as F
from testing.marked_cases import Cases, check_case, ways
from torch.utils.checkpoint import checkpoint


pytestmark = pytest.mark.usefixtures("bodies")
cases = Cases()


@cases
def a_tensor_hook_inside(mark):
    @mark
    def r(x):
        h = x.sin()
        if h.requires_grad:
            h.register_hook(lambda g: g * 2)
        return h * 3

    return lambda x, y, box, items, net: r(x) + r(y)


@cases
def a_tensor_hook_on_a_result(mark):
    @mark
    def r(x):
        return x.sin() * 3

    def f(x, y, box, items, net):
        h = r(x)
        if h.requires_grad:
            h.register_hook(lambda g: g * 2)
        return r(h)

    return f


@cases
def module_hooks(mark):
    @mark
    def r(x, net):
        return net.lin(x).relu()

    def f(x, y, box, items, net):
        return r(x, net) + r(y, net)

    def prepared(x, y, box, items, net):
        if not net.lin._forward_hooks:
            net.lin.register_forward_hook(lambda m, a, out: out * 2)
            net.lin.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
        return f(x, y, box, items, net)

    return prepared


class Tagged(torch.Tensor):
    """A subclass with a __torch_function__ that does something."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out * 2 if func in (torch.sin, torch.Tensor.sin) else out


@cases
def a_subclass_with_torch_function(mark):
    @mark
    def r(x):
        return x.sin() + 1

    return lambda x, y, box, items, net: r(y.as_subclass(Tagged)).as_subclass(torch.Tensor) + r(x)


@cases
def a_torch_function_mode(mark):
    class Doubling(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out * 2 if func is torch.Tensor.sin else out

    @mark
    def r(x):
        return x.sin() + 1

    def f(x, y, box, items, net):
        h = r(x)
        with Doubling():
            return r(h) + r(y)

    return f


@cases
def vmap_inside(mark):
    @mark
    def r(x):
        return torch.vmap(lambda row: row * 2 + row.sin())(x) + 1

    return lambda x, y, box, items, net: r(x) + r(y)


@cases
def vmap_around(mark):
    @mark
    def r(row):
        return row.sin() * 2 + row.sum()

    return lambda x, y, box, items, net: torch.vmap(r)(x) + torch.vmap(r, 1, 1)(x)


@cases
def grad_inside(mark):
    @mark
    def r(x):
        return torch.func.grad(lambda t: (t.sin() * t).sum())(x) + 1

    return lambda x, y, box, items, net: r(x) + r(y)


@cases
def grad_around(mark):
    @mark
    def r(x):
        return (x.sin() * x).sum()

    return lambda x, y, box, items, net: torch.func.grad(r)(x) + torch.func.vmap(torch.func.grad(r))(y)


@cases
def jvp_inside_and_around(mark):
    @mark
    def r(x):
        return (x.sin() * x).cos()

    @mark
    def s(x, v):
        return torch.func.jvp(lambda t: t.sin() * 2, (x,), (v,))

    return lambda x, y, box, items, net: (torch.func.jvp(r, (y,), (items[0],)), s(y, items[1]))


@cases
def autograd_grad_inside(mark):
    @mark
    def r(x):
        t = x.detach().requires_grad_()
        return torch.autograd.grad((t.sin() * 2).sum(), t)[0] + x

    return lambda x, y, box, items, net: r(x) + r(y)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 5 * x


@cases
def an_autograd_function_inside(mark):
    @mark
    def r(x):
        return Cube.apply(x.sin()) + 1

    return lambda x, y, box, items, net: r(x) + r(y)


MODES = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}
for _name, _mode in MODES.items():

    def _mode_inside(mark, mode=_mode):
        @mark
        def r(x, y):
            h = x.sin()
            with mode():
                h = (h @ y).cos() + 1
            return h.float() * x.detach()

        return lambda x, y, box, items, net: r(x, y) + r(y, x)

    def _mode_around(mark, mode=_mode):
        @mark
        def r(x, y):
            return (x.sin() @ y).cos() + 1

        def f(x, y, box, items, net):
            h = r(x, y)
            with mode():
                k = r(x, y)
            return h * k.detach().clone().float(), k

        return f

    cases[f"{_name}_inside"] = _mode_inside
    cases[f"{_name}_around"] = _mode_around


@cases
def grad_mode_is_left_changed(mark):
    @mark
    def r(x):
        h = x.sin() + 1
        torch.set_grad_enabled(False)
        return h * h.cos()

    def f(x, y, box, items, net):
        h = r(x)
        return h, h * 2, torch.is_grad_enabled()

    return f


@cases
def checkpoint_inside(mark):
    @mark
    def r(x):
        return checkpoint(lambda t: F.dropout((t * 2).sin(), 0.5), x + 1, use_reentrant=False) * 2

    return lambda x, y, box, items, net: r(x) + r(y)


@cases
def checkpoint_around(mark):
    @mark
    def r(x):
        return (x.sin() * 2, x.cos())

    def g(x):
        a, b = r(x)
        return r(a * b)[0]

    return lambda x, y, box, items, net: checkpoint(g, x, use_reentrant=False) + r(y)[0]


@cases
def a_region_in_a_branch_of_cond(mark):
    @mark
    def r(x):
        return x.sin() * 2 + 1

    def f(x, y, box, items, net):
        h = torch.cond(x.sum() > 0, lambda t: r(t) + r(t * 2), lambda t: t.cos(), (x,))
        return r(h) + r(y)

    return f


@cases
def cond_inside(mark):
    @mark
    def r(x):
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,)) + x.sin()

    return lambda x, y, box, items, net: r(x) + r(y)


@cases
def random_numbers(mark):
    @mark
    def r(x):
        return F.dropout(x.sin(), 0.5) + torch.rand_like(x) * torch.randn(4)

    return lambda x, y, box, items, net: r(x) + r(x)


@cases
def random_numbers_of_python(mark):
    import random

    @mark
    def r(x):
        return x * random.random() + random.randint(0, 9)

    return lambda x, y, box, items, net: r(x) + r(x)


@cases
def marking_in_the_compiled_function(mark):
    def f(x, y, box, items, net):
        g = mark(lambda t: t.sin() + 1)

        @mark
        def r(t, scale=2.0):
            return g(t) * scale

        return r(x) + r(y, scale=3.0) + g(x)

    return f


@ways
@pytest.mark.parametrize("name", cases)
def test_a_mark_changes_nothing(name, backend, fullgraph, training):
    check_case(cases[name], backend, fullgraph, training)
