"""Bodies and operators for the tests of wrap semantics, and the comparison with eager that they make."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any, NamedTuple

import torch
import torch._dynamo
import torch._higher_order_ops.wrap as wrap_ops
import torch.utils._pytree as pytree
from torch._higher_order_ops.base_hop import BaseHOP
from torch.utils.checkpoint import checkpoint


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


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sin()
        ctx.save_for_backward(x)
        return y, y

    @staticmethod
    def backward(ctx, g, h):
        return (g + 3 * h) * ctx.saved_tensors[0].cos()


def double_all(body):
    def run(*args):
        out = body(*args)
        return tuple(2 * t for t in out) if isinstance(out, tuple) else 2 * out

    return run


def doubled(body, *args):
    return wrap_ops.dynamo_bypassing_wrapper(double_all, body, *args)


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
