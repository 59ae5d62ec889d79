"""Global state that the program changes around repeated blocks, and inside of them."""

import contextlib
import warnings

import expecttest
import pytest
import torch
import torch.nn.functional as F
from testing.cases import some
from torch import nn
from torch._dynamo.testing import EagerAndRecordGraphs, normalize_gm
from torch._dynamo.utils import counters
from torch.amp import autocast
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint


BF16, FP16 = torch.bfloat16, torch.float16


class Block(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.body = body

    def core(self, x):
        return x + self.b(F.gelu(self.a(self.norm(x)))).tanh() * 0.5

    def attend(self, x):
        return F.scaled_dot_product_attention(x[None], self.a(x)[None], self.b(x)[None])[0]

    def forward(self, x):
        return self.body(self, x)


class Stack(nn.Module):
    def __init__(self, around, body, layers, tied=False):
        super().__init__()
        self.layers = nn.ModuleList(Block(body) for _ in range(layers))
        self.head, self.around = nn.Linear(8, 4), around
        # ``tied``: all layers have the first weight, or some have that of one of them.
        for layer in range(layers) if tied is True else tied or ():
            self.layers[layer].a.weight = self.layers[0 if tied is True else tied[0]].a.weight

    def forward(self, x):
        return self.around(self, x).float()


# What is inside of a block.


def plain(s, x):
    return s.core(x)


def distances(s, x):
    # Autocast leaves these in float32, and would cast what they are made of.
    h, k = s.a(x), s.b(x)
    d = torch.cdist(h.float(), k.float(), compute_mode="use_mm_for_euclid_dist").mean(-1, keepdim=True)
    return x + d + F.cosine_similarity(h, k, dim=-1).unsqueeze(-1)


def off_inside(s, x):
    with autocast("cpu", enabled=False):
        y = x.float() @ s.a.weight
        z = torch.cdist(y, y, compute_mode="use_mm_for_euclid_dist")
    return s.core(x) + y.sin() + z.mean()


def off_throughout(s, x):
    with autocast("cpu", enabled=False):
        y = s.core(x.float())
    return y.sin()


def half_throughout(s, x):
    with autocast("cpu", dtype=FP16):
        y = s.b(s.a(x))
    return y.sin().cos()


def half_inside(s, x):
    with autocast("cpu", dtype=FP16):
        y = s.core(x)
    return x + y.float()


def dtype_of_the_outer(s, x):
    with autocast("cpu", dtype=FP16):
        y = s.a(x)
        with autocast("cpu"):
            y = y + s.b(y).sin().cos().tan()
    return x + y.float()


def keeps_casts(s, x):
    with autocast("cpu", dtype=BF16, cache_enabled=True):
        y = s.a(x) + s.b(x)
        y = s.a(y) + s.a(x)
    return x + y.float()


def composition(s, x):
    # Casts of the weight for two products: w @ w, and that @ w.
    return s.core(x) @ torch.linalg.matrix_power(s.a.weight, 3) * 0.01


def keeps_none(s, x):
    with autocast("cpu", dtype=BF16, cache_enabled=False):
        y = s.a(x) + s.b(x)
        y = s.a(y) + s.a(x)
    return x + y.float()


def no_grad_inside(s, x):
    with torch.no_grad():
        k = (x * 2).sin().abs() + 1
    return s.core(x / k)


def grad_inside(s, x):
    with torch.enable_grad():
        k = s.core(x)
    return k.sin().cos() + s.a(x)


def modes_nested(s, x):
    with torch.no_grad():
        k = (x * 2).sin().abs() + 1
        with torch.enable_grad():
            z = s.core(x).sin()
        k = k.cos()
    return s.core(x / k) + z


def kernel_inside(s, x):
    with sdpa_kernel(SDPBackend.MATH):
        y = s.attend(x)
    return s.core(x + y)


def kernels_nested(s, x):
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        y = s.attend(x)
        with sdpa_kernel(SDPBackend.MATH):
            y = y + s.attend(y)
        y = y + s.attend(y)
    return s.core(x + y)


def kernels_in_order(s, x):
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        y = s.attend(x)
    return s.core(x + y)


def dropout_inside(s, x):
    # The core uses x twice. The order of a sum of three gradients differs between a layer and its pieces.
    with autocast("cpu", dtype=BF16):
        y = F.dropout(s.core(x), 0.3)
    return y.float()


# What is around the blocks.


def loop(m, x):
    for layer in m.layers:
        x = layer(x)
    return m.head(x)


def whole(dtype=BF16, **options):
    def around(m, x):
        with autocast("cpu", dtype=dtype, **options):
            return loop(m, x)

    return around


def each(m, x):
    for layer in m.layers:
        with autocast("cpu", dtype=BF16):
            x = layer(x).float()
    return m.head(x)


def in_turn(m, x):
    for i, layer in enumerate(m.layers):
        with autocast("cpu", dtype=BF16 if i % 2 else FP16):
            x = layer(x).float()
    return m.head(x)


def no_grad_around_some(m, x):
    half = len(m.layers) // 2
    with torch.no_grad():
        for layer in m.layers[:half]:
            x = layer(x)
    for layer in m.layers[half:]:
        x = layer(x)
    return m.head(x)


def no_grad_around(m, x):
    with torch.no_grad():
        for layer in m.layers:
            x = layer(x)
    return m.head(x)


def kernel_around(m, x):
    with sdpa_kernel(SDPBackend.MATH):
        return loop(m, x)


def checkpointed(m, x):
    with autocast("cpu", dtype=BF16, cache_enabled=True):
        for layer in m.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return m.head(x)


def weights_read_outside(read):
    def around(m, x):
        with autocast("cpu", dtype=BF16, cache_enabled=True):
            for layer in m.layers:
                x = layer(x) + read(layer.a.weight)
            return m.head(x)

    return around


def cache_switched(m, x):
    with autocast("cpu", dtype=BF16):
        torch.set_autocast_cache_enabled(True)
        return loop(m, x)


# name -> around, inside, layers, which layers share a weight; (bodies, operators in them) under aot_eager.
CASES = {
    "whole_forward": (whole(), plain, 4, False, (1, 28)),
    "shared_weight": (whole(), plain, 4, True, (1, 28)),
    "operators_made_of_others": (whole(), distances, 4, False, (1, 40)),
    "each_layer": (each, plain, 4, False, (1, 28)),
    "two_dtypes": (in_turn, plain, 8, False, (2, 56)),
    "off_in_on": (whole(), off_inside, 4, False, (1, 64)),
    "off_throughout_in_on": (whole(), off_throughout, 4, False, None),
    "half_throughout_in_on": (whole(), half_throughout, 4, False, None),
    "off_throughout_in_turn": (in_turn, off_throughout, 6, False, None),
    "inside": (loop, half_inside, 4, False, (1, 44)),
    "another_inside": (whole(), half_inside, 4, False, (1, 44)),
    "dtype_of_the_outer": (whole(), dtype_of_the_outer, 4, False, (1, 48)),
    "kept_casts": (loop, keeps_casts, 4, True, (0, 0)),
    "kept_casts_around": (whole(cache_enabled=True), plain, 4, False, (1, 28)),
    "kept_casts_around_tied": (whole(cache_enabled=True), plain, 4, True, (1, 20)),
    "kept_casts_around_two_tied": (whole(cache_enabled=True), plain, 6, (2, 4), None),
    "kept_casts_in_a_layer": (loop, keeps_casts, 4, False, None),
    "kept_casts_under_checkpoint": (checkpointed, plain, 4, False, (1, 32)),
    "kept_casts_under_checkpoint_tied": (checkpointed, plain, 6, (2, 4), None),
    "kept_casts_of_weights_read_outside": (weights_read_outside(lambda w: (w @ w).sum()), plain, 4, False, None),
    "kept_casts_of_weights_added_outside": (weights_read_outside(lambda w: w[0] * 2), plain, 4, False, None),
    "kept_casts_of_a_composition": (whole(cache_enabled=True), composition, 4, False, None),
    "kept_casts_by_a_switch": (cache_switched, plain, 4, True, (0, 0)),
    "kept_casts_in_another": (whole(), keeps_casts, 4, True, (0, 0)),
    "no_kept_casts": (whole(cache_enabled=False), keeps_none, 4, True, (1, 40)),
    "no_grad_inside": (loop, no_grad_inside, 4, False, (1, 56)),
    "no_grad_in_autocast": (whole(), no_grad_inside, 4, False, (1, 56)),
    "no_grad_around_some": (no_grad_around_some, plain, 6, False, (2, 28)),
    # A call with grad mode off has no gradient, whatever is switched on inside.
    "grad_in_no_grad": (no_grad_around, grad_inside, 4, False, (1, 12)),
    "modes_nested": (loop, modes_nested, 4, False, (1, 104)),
    "modes_in_no_grad": (no_grad_around, modes_nested, 4, False, (2, 42)),
    "kernel_inside": (loop, kernel_inside, 4, False, (1, 92)),
    "kernels_nested": (loop, kernels_nested, 4, False, (1, 180)),
    "kernel_in_autocast": (whole(), kernel_inside, 4, False, (1, 92)),
    # An order of kernels, and a choice around all layers, stay flat.
    "kernels_in_order": (loop, kernels_in_order, 4, False, (1, 32)),
    "kernel_around": (kernel_around, kernel_inside, 4, False, (0, 0)),
    "dropout_inside": (loop, dropout_inside, 4, False, None),
}
AROUND_THE_CALL = {
    "alone": contextlib.nullcontext,
    "in_autocast": lambda: autocast("cpu", dtype=BF16),
    "no_grad": torch.no_grad,
}


def _thread_state():
    nesting = torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()
    cast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
    return nesting, cast, torch.is_grad_enabled(), torch.nn.attention._cur_sdpa_kernel_backends()


def _observed(case, backend, mode, ambient="alone", calls=2):
    """Results, gradients, random numbers and state of two calls of a compiled stack of blocks."""
    around, inside, layers, tied, _ = case
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = Stack(around, inside, layers, tied)
    if mode in ("mark", "verify"):
        for layer in model.layers:
            layer.forward = torch.compiler.nested_compile_region(layer.forward)
    x = torch.randn(5, 8, requires_grad=True)
    options = {"graph_deduplication_lint": True, "verify_region_reuse": mode == "verify"}
    options["use_graph_deduplication"] = mode == "flag"
    with torch._dynamo.config.patch(**options), AROUND_THE_CALL[ambient](), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        ys = [torch.compile(model, backend=backend, fullgraph=True)(x) for _ in range(calls)]
    if ys[0].requires_grad:
        sum(y.pow(2).sum() for y in ys).backward()
    seen = [*(y.detach() for y in ys), x.grad, *(p.grad for p in model.parameters()), torch.get_rng_state()]
    return seen, _thread_state()


def _same(found, wanted):
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0, equal_nan=True)
    assert found[1] == wanted[1]


@pytest.mark.parametrize("case", CASES)
def test_results_gradients_and_state_are_those_of_the_flat_graph(case):
    wanted = _observed(CASES[case], "aot_eager", "flat")
    _same(_observed(CASES[case], "aot_eager", "flag"), wanted)
    outlined = counters["graph_deduplication"]
    if CASES[case][-1] is not None:
        assert (outlined["bodies"], outlined["operators_outlined"]) == CASES[case][-1]


# A block in a checkpoint is inlined. A checkpoint that recomputes a cast which was kept raises, on stock as well.
MARKED = [(name, mode) for name in CASES if "checkpoint" not in name for mode in ("mark", "verify")]


@pytest.mark.parametrize(("case", "mode"), some(MARKED, [*MARKED[::4], *MARKED[3::4]]))
def test_marked_blocks_at_run_time(case, mode):
    wanted = _observed(CASES[case], "eager", "flat")
    _same(_observed(CASES[case], "eager", mode), wanted)
    assert (counters["regions"]["verified"] > 0) == (mode == "verify")


@pytest.mark.parametrize("ambient", ["in_autocast", "no_grad"])
@pytest.mark.parametrize(
    "case",
    [
        *("whole_forward", "operators_made_of_others", "off_in_on", "dtype_of_the_outer", "modes_nested"),
        *("kept_casts", "kept_casts_around", "kept_casts_around_two_tied"),
        *("off_throughout_in_on", "half_throughout_in_on"),
    ],
)
def test_calls_of_the_compiled_model_in_other_states(case, ambient):
    wanted = _observed(CASES[case], "aot_eager", "flat", ambient)
    _same(_observed(CASES[case], "aot_eager", "flag", ambient), wanted)


@pytest.mark.parametrize("mode", ["flag", "mark"])
@pytest.mark.parametrize("ambient", ["alone", "in_autocast"])
def test_a_traced_body_contains_its_casts(mode, ambient):
    """It ran under the autocast around it once more: its results had another dtype, and Inductor's gradients were 0."""
    around = whole() if ambient == "alone" else loop
    case = (around, off_throughout, 4, False, None)
    wanted, _ = _observed(case, "inductor", "flat", ambient)
    found, _ = _observed(case, "inductor", mode, ambient)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_cast_that_serves_two_layers_has_another_gradient():
    kept, ours = (
        _observed((whole(cache_enabled=keep), plain, 4, True, None), "eager", "flat")[0] for keep in (True, False)
    )
    assert not all(torch.equal(a, b) for a, b in zip(kept, ours, strict=True))


def test_a_gradient_is_computed_under_the_autocast_that_the_backward_finds():
    # Under autocast, the gradient of a float64 product is another: the backward here runs without.
    def block(w, x):
        return (x @ w).double().sin() @ w.double() * 0.5 + x

    def f(x, *weights):
        with autocast("cpu", dtype=BF16):
            for w in weights:
                x = block(w, x).float()
        return x

    inputs = [torch.randn(4, 4, requires_grad=True) for _ in range(5)]
    grads = []
    for flag in (False, True):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(use_graph_deduplication=flag):
            y = torch.compile(f, backend="aot_eager")(*inputs)
        grads.append(torch.autograd.grad(y.sum(), inputs))
    torch.testing.assert_close(*grads, rtol=0, atol=0)


@pytest.mark.parametrize("setting", ["off", [{"device_type": "cpu"}]], ids=["off", "another"])
@pytest.mark.parametrize("ambient", ["alone", "in_autocast"])
@pytest.mark.parametrize("case", ["operators_made_of_others", "off_in_on"])
def test_the_backward_has_the_autocast_that_aot_autograd_is_told_to_give_it(case, ambient, setting):
    with torch._functorch.config.patch(backward_pass_autocast=setting):
        wanted = _observed(CASES[case], "aot_eager", "flat", ambient)
        _same(_observed(CASES[case], "aot_eager", "flag", ambient), wanted)


def _without_its_own(w, x):
    return (x @ w).sin() @ w * 0.5 + x


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("around", ["nothing", "on", "off_in_on"])
def test_the_forward_is_not_under_an_autocast_that_is_the_backwards_only(around, backend):
    def f(x, *weights):
        with autocast("cpu", BF16, enabled=around != "nothing"):
            with autocast("cpu", BF16, enabled=around == "on"):
                for w in weights:
                    x = _without_its_own(w, x)
        return x

    inputs = [torch.randn(8, 8, requires_grad=True) for _ in range(5)]
    found = []
    for flag in (False, True):
        torch._dynamo.reset()
        setting = [{"device_type": "cpu"}]
        with (
            torch._functorch.config.patch(backward_pass_autocast=setting),
            torch._dynamo.config.patch(use_graph_deduplication=flag),
        ):
            y = torch.compile(f, backend=backend)(*inputs)
            found.append((y.detach(), *torch.autograd.grad(y.float().sum(), inputs)))
    torch.testing.assert_close(*found, rtol=1e-6 if backend == "inductor" else 0, atol=1e-6)


def test_a_call_under_another_autocast_is_traced_again():
    @torch.compiler.nested_compile_region
    def block(x, w):
        return (x @ w).sin().cos() @ w

    def f(x, w):
        with autocast("cpu", dtype=BF16):
            a = block(x, w)
        with autocast("cpu", dtype=FP16):
            b = block(x, w)
        with autocast("cpu", dtype=BF16):
            return a.float() + b.float() + block(x, w).float()

    counters.clear()
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    torch.testing.assert_close(torch.compile(f, backend="eager")(x, w), f(x, w), rtol=0, atol=0)
    assert (counters["regions"]["traced"], counters["regions"]["reused"]) == (2, 1)


def test_graph_of_a_body_that_enters_autocast():
    def f(x, w):
        with autocast("cpu", dtype=BF16):
            for _ in range(6):
                x = (x @ w).sin().cos().tan()
            return x

    recorder = EagerAndRecordGraphs()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(use_graph_deduplication=True):
        torch.compile(f, backend=recorder)(torch.randn(4, 4), torch.randn(4, 4))
    body = next(m for _, m in recorder.graphs[0].named_children())
    expecttest.assert_expected_inline(
        normalize_gm(body.print_readable(print_output=False)),
        """\
class GraphModule(torch.nn.Module):
    def forward(self, arg0: "bf16[4, 4]", arg1: "f32[4, 4]"):
        _enter_autocast = torch.amp.autocast_mode._enter_autocast('cpu', torch.bfloat16, True, None)

        sin: "bf16[4, 4]" = arg0.sin();  arg0 = None
        cos: "bf16[4, 4]" = sin.cos();  sin = None
        x: "bf16[4, 4]" = cos.tan();  cos = None
        matmul_1: "bf16[4, 4]" = x @ arg1;  x = arg1 = None
        sin_1: "bf16[4, 4]" = matmul_1.sin();  matmul_1 = None
        cos_1: "bf16[4, 4]" = sin_1.cos();  sin_1 = None
        x_1: "bf16[4, 4]" = cos_1.tan();  cos_1 = None

        _exit_autocast = torch.amp.autocast_mode._exit_autocast(_enter_autocast);  _enter_autocast = _exit_autocast = None
        return (x_1,)
""",
    )
