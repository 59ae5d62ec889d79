"""Random programs for the dedupe flag, and the comparison that every test of it makes.

A program is source text: blocks of statements that run several times, in a loop or written out,
with constants, operands and modes that may differ between the turns.
"""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from hypothesis import strategies as st
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_flatten
from torch.utils.checkpoint import checkpoint


SIZE = 4

# {c}: a constant, perhaps another in each turn; {i}: the turn, or a fixed number; {d}: 0 or 1.
PURE = (
    "h = h.sin()",
    "h = torch.cos(h) * {c}",
    "h = h + {c}",
    "h = torch.add(h, skip, alpha=float({c}))",
    "h = h @ ws[{i}]",
    "h = F.linear(h, ws[{i}], b)",
    "h = F.layer_norm(h, (4,))",
    "h = F.gelu(h, approximate=['none', 'tanh', 'none'][{i}])",
    "h = F.softmax(h, dim={d})",
    "h = h.t().contiguous() + h",
    "a, c = h.chunk(2, {d}); h = torch.cat([c, a], {d})",
    "h = h.reshape(2, 8).view(4, 4)",
    "h = h[:, [1, 0, 3, 2]] * h[{i}]",
    "h = h[{i}:].sum(0) + h",
    "m, j = h.max({d}, keepdim=True); h = h - m",
    "h = torch.einsum(['ij,jk->ik', 'ji,jk->ik', 'ij,jk->ik'][{i}], h, ws[0])",
    "h = torch.where(h > {c}, h, -h)",
    "h = (h * h).mean({d}, keepdim=True).rsqrt().clamp(max=3.0) * h",
    "h = F.scaled_dot_product_attention(h[None], skip[None], h[None], is_causal={b})[0]",
    "h = h.double().sin().float()",
    "h = h.to(torch.bfloat16).float()",
    "h = (h > 0).to(h.dtype) * h",
    "h = h * torch.full((4,), {c})",
    "h = h.detach() * h",
    "h = h + skip",
    "skip = h",
    "h = h * b + b",
    "h = F.dropout(h, 0.5, False)",
)
STATEFUL = (
    "h = F.dropout(h, 0.5, True)",
    "h = F.dropout(h, [0.1, 0.5, 0.9][{i}], True)",
    "h = h + torch.rand_like(h)",
    "h = h * torch.bernoulli(torch.full((4, 4), 0.5))",
    "t = h * 2; t.add_({c}); h = t",
    "t = h.clone(); t[:, {d}] = 0.5; h = t + h",
    "t = h * 1; u = t.t(); u.add_(1); h = t.sin()",
    "t = h * 2; t.unsqueeze_(0); h = t.squeeze(0).cos()",
    "z = torch.zeros(4, 4); z[:2] = h[:2]; h = h + z",
    "z = torch.empty(4, 4); z.copy_(h); z[1] = {c}; h = z * h",
    "h = torch.mul(h, 2, out=torch.empty(4, 4)) if not h.requires_grad else h * 2",
    "buf.add_(h.detach())",
    "buf = buf * 0.5 + h.detach()",
    "h = h * buf",
    "outs.append(h)",
    "outs.append(h.sum())",
    "outs.append(h.t())",
    "h = h + outs[-1].sum() if outs else h",
    "a, c = h.split(2, 1); outs.append(a); h = torch.cat((a * c, c), 1)",
    "v = h.view(2, 8); outs.append(v); h = v.view(4, 4).cos()",
    "h = torch.vmap(lambda r: r * {c} + r.sin())(h)",
    "h = checkpoint(lambda t: (t * {c}).sin(), h, use_reentrant=False)",
    "h = torch.cond(h.sum() > 0, lambda t: t.cos(), lambda t: t.sin() * {c}, (h,))",
    "h = h * 1; h.register_hook(lambda g: g * 2) if h.requires_grad else None",
    "n = torch.func.grad(lambda t: t.sin().sum())(h.detach()); h = h + n",
)
MODES = (
    "torch.no_grad()",
    "torch.enable_grad()",
    "torch.set_grad_enabled({b})",
    "torch.autocast('cpu', dtype=torch.bfloat16, enabled={b})",
    "torch.autocast('cpu', dtype=torch.bfloat16)",
)
CONSTANTS = ("1", "1.0", "2.0", "0.5", "-0.0", "0.0", "True", "3")
NAMESPACE = {"torch": torch, "F": F, "checkpoint": checkpoint}


@dataclasses.dataclass
class Program:
    """Source of ``f(x, ws, b, buf)`` and whether its inputs require grad."""

    source: str
    training: bool

    def function(self) -> Callable[..., Any]:
        name = f"<program {hash(self.source)}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        namespace = dict(NAMESPACE)
        exec(compile(self.source, name, "exec"), namespace)
        return namespace["f"]  # type: ignore[return-value]

    def inputs(self) -> tuple[Any, ...]:
        torch.manual_seed(0)
        x, b = torch.randn(SIZE, SIZE), torch.randn(SIZE)
        ws = [torch.randn(SIZE, SIZE) for _ in range(3)]
        for t in (x, b, *ws) if self.training else ():
            t.requires_grad_()
        return x, ws, b, torch.randn(SIZE, SIZE)


@st.composite
def _statements(draw: st.DrawFn, turn: str) -> list[str]:
    def fill(text: str) -> str:
        same = draw(st.sampled_from(CONSTANTS))
        each = [draw(st.sampled_from(CONSTANTS)) for _ in range(3)]
        constant = draw(st.sampled_from((same, same, f"[{', '.join(each)}][{turn}]")))
        return (
            text.replace("{c}", constant)
            .replace("{i}", draw(st.sampled_from((turn, turn, "0", "1"))))
            .replace("{d}", draw(st.sampled_from("01")))
            .replace("{b}", draw(st.sampled_from((f"{turn} != 1", f"{turn} == 1", "True"))))
        )

    pool = st.one_of(st.sampled_from(PURE), st.sampled_from(PURE), st.sampled_from(STATEFUL))
    lines = [fill(draw(pool)) for _ in range(draw(st.integers(4, 12)))]
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(lines) - 1))
        length = draw(st.integers(1, 4))
        head = f"with {fill(draw(st.sampled_from(MODES)))}:"
        inner = lines[at : at + length]
        lines[at : at + length] = [head, *("    " + line for line in inner), "h = h.float()"]
    return lines


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs of one or two repeated blocks; each in a loop, or written out turn by turn."""
    lines = ["def f(x, ws, b, buf):", "    outs = []", "    h = skip = x"]
    for _ in range(draw(st.integers(1, 2))):
        body = draw(_statements("i"))
        if draw(st.booleans()):
            lines += ["    for i in range(3):", *("        " + line for line in body)]
        else:
            for turn in range(3):
                lines += [f"    i = {turn}", *("    " + line for line in body)]
                if draw(st.integers(0, 2)) == 0:
                    lines.append("    # the same again, on other lines")
    lines.append("    return h, outs")
    return Program("\n".join(lines) + "\n", draw(st.booleans()))


def run(program: Program, backend: str | None, flag: bool) -> dict[str, Any]:
    """All that a run of ``program`` can be seen to do; backend None is eager."""
    torch._dynamo.reset()
    function, inputs = program.function(), program.inputs()
    called = function if backend is None else torch.compile(function, backend=backend)
    torch.manual_seed(1)
    with torch._dynamo.config.patch(use_graph_deduplication=flag, graph_deduplication_lint=True):
        outputs = called(*inputs)
        leaves = [t for t in tree_flatten(outputs)[0] if t.requires_grad]
        if leaves:
            sum((t.float() ** 2).mean() * (k + 1) for k, t in enumerate(leaves)).backward()  # type: ignore[union-attr]
    return {
        "outputs": outputs,
        "gradients": [t.grad for t in tree_flatten(inputs)[0]],
        "inputs": inputs,
        "random": torch.get_rng_state(),
    }


def difference(wanted: dict[str, Any], got: dict[str, Any]) -> str | None:
    """What differs between two runs, or None."""
    for what in wanted:
        (a, shape), (b, other) = tree_flatten(wanted[what]), tree_flatten(got[what])
        if shape != other:
            return f"{what}: structure {shape} against {other}"
        for k, (x, y) in enumerate(zip(a, b)):
            if x is None or y is None:
                if x is not y:
                    return f"{what}[{k}]: {x} against {y}"
                continue
            if (x.requires_grad, x.dtype, x.shape) != (y.requires_grad, y.dtype, y.shape):
                return f"{what}[{k}]: requires_grad, dtype or shape"
            try:
                torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-3, equal_nan=True)
            except AssertionError as e:
                return f"{what}[{k}]: {e}"
    return None


def check(program: Program, backends: tuple[str, ...]) -> int:
    """Asserts that the flag changes nothing; returns the number of calls outlined.

    The reference is eager. Where ``torch.compile`` without the flag differs from eager too, or
    fails, the flag must give what that gives.
    """
    try:
        wanted = run(program, None, False)
    except RuntimeError:
        return 0  # autograd refuses the program (a value it needs was written): no right answer
    calls = 0
    for backend in backends:
        counters.clear()
        try:
            got: Any = run(program, backend, True)
        except Exception as e:
            got = e
        calls += counters["graph_deduplication"]["calls"]
        problem = repr(got) if isinstance(got, Exception) else difference(wanted, got)
        if problem is None:
            continue
        try:
            flat: Any = run(program, backend, False)
        except Exception as e:
            flat = e
        if isinstance(flat, Exception) or isinstance(got, Exception):
            same = type(flat) is type(got)
        else:
            same = difference(flat, got) is None
        assert same, f"with the flag, {backend}: {problem}\n{program.source}training={program.training}"
    return calls
