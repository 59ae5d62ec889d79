"""Two programs that differ in one thing that counts have two keys in AOTAutogradCache."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from testing.cache_keys import keys_of, keys_of_text
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import canonical_graph
from torch._inductor import config as inductor_config


INPUTS = """
def inputs():
    return torch.ones(4, 8), torch.ones(8, 8, requires_grad=True)
"""

# name -> (a program, edits of it: each replaces one piece of text by another and changes what the program does)
PROGRAMS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "pointwise": (
        "def f(x, w):\n    h = (x @ w).relu()\n    return h.sum(0), h * 2.0",
        [
            ("2.0", "3.0"),
            ("2.0", "2"),
            ("2.0", "-2.0"),
            ("2.0", "2.0000000000000004"),
            ("2.0", "float('nan')"),
            ("2.0", "True"),
            ("2.0", "2j"),
            ("relu()", "sigmoid()"),
            ("relu()", "relu_()"),
            ("sum(0)", "sum(1)"),
            ("sum(0)", "sum(-2)"),
            ("sum(0)", "mean(0)"),
            ("sum(0)", "sum((0,))"),
            ("sum(0)", "sum(0, keepdim=True)"),
            ("sum(0)", "sum(0, dtype=torch.float64)"),
            ("h * 2.0", "h / 2.0"),
            ("h * 2.0", "h + 2.0"),
            ("h * 2.0", "2.0 - h"),
            ("h.sum(0), h * 2.0", "h * 2.0, h.sum(0)"),
            ("h.sum(0), h * 2.0", "h.sum(0)"),
            ("h.sum(0), h * 2.0", "h.sum(0), h * 2.0, h"),
            ("h.sum(0), h * 2.0", "h.sum(0).detach(), h * 2.0"),
            ("x @ w", "x @ w.t()"),
            ("(x @ w)", "(x @ w @ w)"),
        ],
    ),
    "operands": (
        "def f(x, w):\n    y = x @ w\n    a = y.sin()\n    b = y.cos()\n    return a - b, a, b",
        [
            ("a - b, a, b", "b - a, a, b"),
            ("a - b, a, b", "a - b, b, a"),
            ("a - b, a, b", "a - a, a, b"),
            ("a - b, a, b", "a - b, a, a"),
            ("b = y.cos()", "b = a.cos()"),
            ("b = y.cos()", "b = x.cos()"),
            ("a - b, a, b", "a - b, a, b.clone()"),
            ("a - b, a, b", "a - b, a, b.view(4, 8)"),
        ],
    ),
    "copies": (
        "def f(x, w):\n    a = x.sin()\n    b = x.sin()\n    return a @ w, b @ w",
        [("a @ w, b @ w", "a @ w, a @ w"), ("b = x.sin()", "b = a"), ("b = x.sin()", "b = x.sin().sin()")],
    ),
    "write_to_argument": (
        "def f(x, w):\n    a = x * 2\n    x.add_(1)\n    b = x * 3\n    return a @ w + b @ w",
        [
            ("    x.add_(1)\n", ""),
            ("add_(1)", "add(1)"),
            ("add_(1)", "sub_(1)"),
            ("add_(1)", "add_(2)"),
            ("a = x * 2\n    x.add_(1)", "x.add_(1)\n    a = x * 2"),
            ("x.add_(1)\n    b = x * 3", "b = x * 3\n    x.add_(1)"),
            ("x.add_(1)", "x.add_(1)\n    x.mul_(2)"),
            ("x.add_(1)", "a.add_(1)"),
            ("x.add_(1)", "x[0].add_(1)"),
            ("x.add_(1)", "x[0] = 1"),
            ("x.add_(1)", "x += 1\n    x += 0"),
            ("x.add_(1)", "x.t_().t_()"),
        ],
    ),
    "two_writes": (
        "def f(x, w):\n    y = x.clone()\n    y.add_(1)\n    y.mul_(2)\n    return y @ w",
        [
            ("y.add_(1)\n    y.mul_(2)", "y.mul_(2)\n    y.add_(1)"),
            ("clone()", "view(-1, 8)"),
            ("y.mul_(2)", "x.mul_(2)"),
        ],
    ),
    "factories": (
        "def f(x, w):\n    return x @ w + torch.zeros(8) + torch.arange(0, 8, 1)",
        [
            ("zeros(8)", "ones(8)"),
            ("zeros(8)", "zeros(4, 8)"),
            ("zeros(8)", "zeros(8, dtype=torch.float64)"),
            ("zeros(8)", "zeros(8, requires_grad=True)"),
            ("zeros(8)", "empty(8)"),
            ("zeros(8)", "full((8,), 2.0)"),
            ("arange(0, 8, 1)", "arange(1, 9, 1)"),
            ("arange(0, 8, 1)", "arange(0, 16, 2)"),
            ("zeros(8)", "rand(8)"),
            ("arange(0, 8, 1)", "arange(0, 8, 1.0)"),
            ("zeros(8)", "zeros_like(x)"),
            ("zeros(8)", "zeros(8, device='meta').new_zeros(8, device='cpu')"),
        ],
    ),
    "layout": (
        "def f(x, w):\n    return (x @ w).view(2, 2, 8).permute(0, 2, 1).contiguous().sum(-1)",
        [
            ("view(2, 2, 8)", "view(1, 4, 8)"),
            ("view(2, 2, 8)", "reshape(2, 2, 8)"),
            ("permute(0, 2, 1)", "permute(2, 0, 1)"),
            (".contiguous()", ""),
            ("permute(0, 2, 1)", "transpose(1, 2)"),
            ("sum(-1)", "sum(-2)"),
            ("sum(-1)", "amax(-1)"),
            ("sum(-1)", "cumsum(-1)"),
            (".contiguous()", ".clone(memory_format=torch.preserve_format)"),
        ],
    ),
    "indexing": (
        "def f(x, w):\n    y = x @ w\n    return y[1:3, ::2], y[None, ..., 0], y[:, [0, 1]]",
        [
            ("1:3", "0:3"),
            ("1:3", "1:"),
            ("::2", "::4"),
            ("::2", "1::2"),
            ("None, ..., 0", "..., 0"),
            ("..., 0", "..., 1"),
            ("None, ...", "..., None"),
            ("[0, 1]", "[1, 0]"),
            ("[0, 1]", "0:2"),
            ("..., 0", "..., -1"),
        ],
    ),
    "functional": (
        "def f(x, w):\n    y = F.layer_norm(x @ w, (8,), None, None, 1e-5)\n    return F.softmax(F.gelu(y, approximate='none'), dim=-1)",
        [
            ("1e-5", "1e-6"),
            ("'none'", "'tanh'"),
            ("dim=-1", "dim=0"),
            ("dim=-1", "dim=-1, dtype=torch.float64"),
            ("F.gelu", "(lambda y, approximate: F.silu(y))"),
            ("None, None", "w[0], None"),
            ("None, None", "None, w[0]"),
            ("F.softmax", "F.log_softmax"),
            ("(8,)", "(4, 8)"),
        ],
    ),
    "random": (
        "def f(x, w):\n    a = F.dropout(x, 0.5)\n    b = torch.rand_like(x)\n    return a @ w + b",
        [
            ("0.5", "0.25"),
            ("0.5", "0.5, training=False"),
            ("rand_like", "randn_like"),
            ("rand_like", "zeros_like"),
            ("a = F.dropout(x, 0.5)\n    b = torch.rand_like(x)", "b = torch.rand_like(x)\n    a = F.dropout(x, 0.5)"),
            ("b = torch.rand_like(x)", "b = torch.rand_like(x)\n    torch.rand_like(x)"),
        ],
    ),
    "grad_mode": (
        "def f(x, w):\n    with torch.no_grad():\n        y = x @ w\n    return y + w.sum()",
        [
            ("torch.no_grad()", "torch.enable_grad()"),
            ("y + w.sum()", "(y + w.sum()).detach()"),
            ("        y = x @ w\n    return y + w.sum()", "        y = x @ w\n        s = w.sum()\n    return y + s"),
        ],
    ),
    "attention": (
        "def f(x, w):\n    q = (x @ w).view(1, 2, 2, 8)\n    return F.scaled_dot_product_attention(q, q, q, None, 0.0, False)",
        [
            ("0.0, False", "0.0, True"),
            ("False", "False, scale=0.5"),
            ("q, q, q", "q, q, q * 2"),
            ("view(1, 2, 2, 8)", "view(2, 1, 2, 8)"),
            ("None", "torch.ones(2, 2, dtype=torch.bool)"),
        ],
    ),
    "checkpoint": (
        "from torch.utils.checkpoint import checkpoint as c\ndef g(x, w):\n    return (x @ w).sin().sin()\n"
        "def f(x, w):\n    return c(g, x, w, use_reentrant=False)",
        [
            ("c(g, x, w, use_reentrant=False)", "g(x, w)"),
            ("sin().sin()", "sin().cos()"),
            ("sin().sin()", "sin()"),
            ("use_reentrant=False", "use_reentrant=False, preserve_rng_state=False"),
        ],
    ),
    "annotation": (
        "from torch.fx.traceback import annotate\ndef f(x, w):\n    with annotate({'stage': 1}):\n        y = x @ w\n    return y.sin()",
        [
            ("1", "2"),
            ("'stage'", "'stream'"),
            ("{'stage': 1}", "{'stage': 1, 'other': 0}"),
            ("    with annotate({'stage': 1}):\n        y", "    y"),
        ],
    ),
    "a write whose flag is given by position": (
        "def f(x, w):\n    h = x.sin()\n    r = F.rrelu(h, 0.1, 0.3, False, True)\n    a = h * 2\n    return a @ w",
        [
            ("    r = F.rrelu(h, 0.1, 0.3, False, True)\n", ""),
            ("False, True", "False, False"),
            (
                "r = F.rrelu(h, 0.1, 0.3, False, True)\n    a = h * 2",
                "a = h * 2\n    r = F.rrelu(h, 0.1, 0.3, False, True)",
            ),
        ],
    ),
    "a norm that is bounded": (
        "def f(x, w):\n    i, t = torch.tensor([1, 2]), x.detach() * 3\n    F.embedding_bag(i, t, i - 1, 1.0)\n    return t @ w",
        [
            ("    F.embedding_bag(i, t, i - 1, 1.0)\n", ""),
            ("i - 1, 1.0", "i - 1, None"),
            ("F.embedding_bag(i, t, i - 1, 1.0)\n    return t @ w", "t = t @ w\n    return t"),
        ],
    ),
    "places of a pooling": (
        "def f(x, w):\n    p = F.fractional_max_pool2d(x.view(1, 4, 8), 2, (2, 2))\n    return torch.rand(4) @ x @ w",
        [("    p = F.fractional_max_pool2d(x.view(1, 4, 8), 2, (2, 2))\n", "")],
    ),
    "region": (
        "@torch.compiler.nested_compile_region\ndef g(x, w):\n    return (x @ w).sin() + x * 2\n"
        "def f(x, w):\n    return g(g(g(x, w), w), w)",
        [
            ("sin()", "cos()"),
            ("x * 2", "x * 3"),
            ("g(g(g(x, w), w), w)", "g(g(x, w), w)"),
            ("g(g(g(x, w), w), w)", "g(g(g(x, w), w), w.t())"),
            ("x * 2", "x + 2"),
        ],
    ),
}
CASES = [(name, k) for name, (_, edits) in PROGRAMS.items() for k in range(len(edits))]
_known: dict[Any, list[str]] = {}


def unedited(name: str) -> list[str]:
    if name not in _known:
        keys = keys_of_text(PROGRAMS[name][0] + INPUTS)
        assert not any(" " in key for key in keys), keys
        _known[name] = keys
    return _known[name]


def test_the_signature_of_a_function_of_the_programs_is_not_read():
    def mine(x):
        return x

    mine.__signature__ = "inspect would raise"
    assert not canonical_graph._is_free(torch.fx.Graph().call_function(mine, ()))


@pytest.mark.parametrize("name,k", CASES, ids=[f"{n}-{k}" for n, k in CASES])
def test_edit(name, k):
    source, edits = PROGRAMS[name]
    old, new = edits[k]
    assert source.count(old) >= 1 and old != new
    edited = keys_of_text(source.replace(old, new, 1) + INPUTS)
    assert set(edited).isdisjoint(unedited(name))


def ones(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*shape, **options)


def views_of_one() -> tuple[torch.Tensor, ...]:
    base = ones(64)
    return base[:32].view(4, 8), base.view(8, 8)


def apart_in_one() -> tuple[torch.Tensor, ...]:
    base = ones(96)
    return base[:32].view(4, 8), base[32:].view(8, 8)


# Other inputs for the same program: what they are must be in the key.
OTHER_INPUTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "rows": lambda: (ones(5, 8), ones(8, 8)),
    "columns": lambda: (ones(4, 7), ones(7, 8)),
    "stride": lambda: (ones(8, 4).t(), ones(8, 8)),
    "stride_of_second": lambda: (ones(4, 8), ones(8, 8).t()),
    "gaps": lambda: (ones(4, 16)[:, :8], ones(8, 8)),
    "expanded": lambda: (ones(8).expand(4, 8), ones(8, 8)),
    "double": lambda: (ones(4, 8).double(), ones(8, 8).double()),
    "half": lambda: (ones(4, 8).bfloat16(), ones(8, 8).bfloat16()),
    "integers": lambda: (ones(4, 8).long(), ones(8, 8).long()),
    "complex": lambda: (ones(4, 8).cfloat(), ones(8, 8).cfloat()),
    "requires_grad": lambda: (ones(4, 8, requires_grad=True), ones(8, 8)),
    "second_requires_grad": lambda: (ones(4, 8), ones(8, 8, requires_grad=True)),
    "both_require_grad": lambda: (ones(4, 8, requires_grad=True), ones(8, 8, requires_grad=True)),
    "overlapping": views_of_one,
    "one_storage": apart_in_one,
    "batch": lambda: (ones(1, 8), ones(8, 8)),
    "parameter": lambda: (ones(4, 8), torch.nn.Parameter(ones(8, 8))),
}


def product(x, w):
    return (x @ w) * 2


def written(x, w):
    x.data  # noqa: B018
    y = x @ w
    with torch.no_grad():
        x.mul_(2)
    return y


@pytest.mark.parametrize("program", [product, written])
@pytest.mark.parametrize("name", OTHER_INPUTS)
def test_other_inputs(name, program):
    plain = keys_of(program, ones(4, 8), ones(8, 8))
    others = OTHER_INPUTS[name]()
    if program is written and (name == "expanded" or others[0].requires_grad):
        program = product  # a program that raises has no key
        plain = keys_of(program, ones(4, 8), ones(8, 8))
    assert set(keys_of(program, *others)).isdisjoint(plain)


def test_every_pair_of_inputs():
    """Not only other than the plain ones: no two of them share a key."""
    keys: dict[str, list[str]] = {}
    for name, inputs in OTHER_INPUTS.items():
        keys.setdefault("\n".join(keys_of(product, *inputs())), []).append(name)
    assert [names for names in keys.values() if len(names) > 1] == []


@contextlib.contextmanager
def switched(get: Callable[[], Any], put: Callable[[Any], Any], value: Any):
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


_PRECISIONS = (torch.backends.mkldnn, torch.backends.mkldnn.matmul, torch.backends.cuda.matmul)


def precisions() -> list[str]:
    return [place.fp32_precision for place in _PRECISIONS]


def set_precisions(values: list[str]) -> None:
    for place, value in zip(_PRECISIONS, values, strict=True):
        place.fp32_precision = value


STATES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast_half": lambda: torch.autocast("cpu", dtype=torch.float16),
    "default_dtype": lambda: switched(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": lambda: switched(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "warn_only": lambda: switched(lambda: False, lambda on: torch.use_deterministic_algorithms(on, warn_only=on), True),
    "threads": lambda: switched(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1),
    "precision": lambda: switched(precisions, set_precisions, ["bf16", "bf16", "tf32"]),
    "precision_of_oneDNN": lambda: switched(precisions, set_precisions, ["none", "bf16", "none"]),
    "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "attention_kernel": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "default_device": lambda: torch.device("meta"),
    "tag": lambda: torch.compiler.config.patch(cache_key_tag="mine"),
}
INDUCTOR = {
    "max_autotune": True, "epilogue_fusion": False, "inplace_buffers": False, "allow_buffer_reuse": False,
    "fallback_random": True, "layout_optimization": False, "permute_fusion": True, "pattern_matcher": False,
    "split_cat_fx_passes": False, "size_asserts": False, "debug_fusion": True, "unroll_reductions_threshold": 3,
    "max_fusion_size": 1, "emulate_precision_casts": True, "cpp.simdlen": 0, "cpp.threads": 1,
    "cpp.enable_kernel_profile": True, "cpp.min_chunk_size": 1, "triton.cudagraphs": True,
    "reorder_for_locality": False, "joint_graph_constant_folding": False,
    "coordinate_descent_tuning": True, "memory_planning": True, "comment_origin": True,
    "trace.provenance_tracking_level": 2,
}  # fmt: skip
FUNCTORCH = {
    "activation_memory_budget": 0.5, "ban_recompute_used_far_apart": False, "treat_parameters_as_free_to_save": False,
    "view_replay_for_aliased_outputs": False, "functionalize_rng_ops": True, "recompute_views": True,
    "aggressive_recomputation": True, "guess_tangent_strides_as_outputs": False, "donated_buffer": False,
    "fake_tensor_allow_meta": False, "max_dist_from_bw": 2, "cse": False, "activation_memory_budget_solver": "greedy", "activation_memory_budget_runtime_estimator": "testing",
}  # fmt: skip
for _name, _value in INDUCTOR.items():
    STATES[f"inductor.{_name}"] = lambda n=_name, v=_value: inductor_config.patch({n: v})
for _name, _value in FUNCTORCH.items():
    STATES[f"functorch.{_name}"] = lambda n=_name, v=_value: functorch_config.patch({n: v})


@pytest.mark.parametrize("name", STATES)
def test_other_state(name):
    plain = keys_of(product, ones(4, 8), ones(8, 8))
    inputs = ones(4, 8), ones(8, 8)
    with STATES[name]():
        assert set(keys_of(product, *inputs)).isdisjoint(plain)
    assert keys_of(product, ones(4, 8), ones(8, 8)) == plain


def test_each_state_is_a_state_of_its_own():
    keys: dict[str, list[str]] = {}
    for name, state in STATES.items():
        inputs = ones(4, 8), ones(8, 8)
        with state():
            keys.setdefault("\n".join(keys_of(product, *inputs)), []).append(name)
    assert [names for names in keys.values() if len(names) > 1] == []


def test_enough_of_them():
    assert len(CASES) + 2 * len(OTHER_INPUTS) + len(STATES) >= 200


@pytest.mark.parametrize("bounds", [{"min": 3, "max": 100}, {"min": 2, "max": 64}])
def test_bounds_of_a_size(bounds):
    def marked(**options: Any) -> torch.Tensor:
        x = ones(4, 8)
        torch._dynamo.mark_dynamic(x, 0, **options)
        return x

    plain = keys_of(product, marked(), ones(8, 8), dynamic=None)
    assert set(keys_of(product, marked(**bounds), ones(8, 8), dynamic=None)).isdisjoint(plain)


def test_sizes_that_are_equal_and_sizes_that_are_not():
    def add(x, y):
        return x * 2, y * 2

    same = keys_of(add, ones(4, 8), ones(4, 8), dynamic=True)
    assert set(keys_of(add, ones(4, 8), ones(5, 8), dynamic=True)).isdisjoint(same)
    assert keys_of(add, ones(6, 9), ones(6, 9), dynamic=True) == same
