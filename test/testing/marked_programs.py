"""Random programs that mark functions as regions, and the check that the marks change nothing.

A program is source text of a module: functions that ``region`` marks, and an ``f`` that calls them
in a loop.  ``region`` is ``nested_compile_region`` in one run and the identity in the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import linecache
import random
import sys
import types
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from hypothesis import strategies as st
from testing.observing import Box, Net, Pair, Point, difference, observe, tensors
from torch._dynamo.regions.outcomes import Outcome, forget_outcomes, outcomes
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint


# Of a body: h is the value at hand, x and y the arguments it began with. {c}: a constant, perhaps
# one that the caller passes.
PURE = (
    "h = h.sin()",
    "h = torch.cos(h) * {c}",
    "h = h + {c}",
    "h = h * scale",
    "h = h @ y",
    "h = torch.where(h > {c}, h, -x)",
    "h = F.layer_norm(h, (4,))",
    "h = h.t().contiguous() + x",
    "p, q = h.chunk(2, 1); h = torch.cat([q, p], 1)",
    "h = h.reshape(2, -1).view(x.shape)",
    "h = h * h.shape[0]",
    "h = sum(t * {c} for t in (h, y))",
    "h = h.detach() * h",
    "h = h.double().tanh().float()",
    "h = (h > 0).to(h.dtype) * h",
    "m, j = h.max(1, keepdim=True); h = h - m",
)
CAPTURES = (
    "h = F.linear(h, w, b)",
    "h = h + w",
    "h = h * knob",
    "h = h * len(log)",
    "h = net.lin(h)",
    "h = h * net.buf + net.count",
    "h = h + box.value",
    "h = h * box.n",
    "h = h + items[0].sum()",
    "h = h * STATE['n']",
    "h = h * kw.get('extra', {c})",
    "h = h + (rest[0] if rest else 1)",
    "h = h * gain",
    "h = h + flip",
)
WRITES = (
    "t = h * 2; t.add_({c}); h = t",
    "t = h.clone(); t[:, 0] = 0.5; h = t + h",
    "t = h * 1; u = t.t(); u.add_(1); h = t.sin()",
    "z = torch.zeros_like(h); z[:2] = h[:2]; h = h + z",
    "x.mul_({c})",
    "x.detach().add_(1)",
    "y.add_({c})",
    "x.view(-1)[0].fill_({c})",
    "h.relu_()",
    "net.buf.add_(h.detach().mean(0))",
    "net.buf = net.buf * 0.5",
    "box.value.add_(1)",
    "items[0].copy_(h.detach())",
    "flip.add_({c})",
    "table[:, :4].mul_(0.5)",
    "v = items[0].t(); v[0] = {c}; h = h + v",
)
EFFECTS = (
    "log.append(h)",
    "log.append({c})",
    "items.append(h.sum())",
    "items[0] = h * 2",
    "items.insert(0, h.t())",
    "box.value = h",
    "box.n += 1",
    "box.new = (h, x)",
    "STATE['n'] += 1",
    "STATE['t'] = h",
    "STATE.setdefault('seen', []).append(h.cos())",
    "net.count += 1",
    "net.last = h",
    "knob += 1",
    "if box.n > 2: log.clear()",
)
RANDOM = (
    "h = F.dropout(h, 0.5, True)",
    "h = h + torch.rand_like(h)",
    "h = h * torch.bernoulli(torch.full((4,), 0.5))",
    "h = h * random.random()",
)
BREAKS = (
    "torch._dynamo.graph_break()",
    "print('scale', scale, h.shape)",
    "h = h * h.sum().item()",
    "h = h + 1 if h.sum() > 0 else h - 1",
    "h = h + y.numpy().sum()",
    "h = h[h > 0].sum() + h",
)
RAISES = (
    "if scale > 2: raise ValueError(f'scale {scale}')",
    "if net.count > 1: raise KeyError(len(log))",
    "if len(log) > 1: raise Trouble(h.shape, 'log')",
    "assert len(items) < 3, f'{len(items)} items'",
    "h = h + [0, 1, 2][int(scale)]",
    "h = h @ h[:, :3]",
    "h = h + net.missing",
    "h = h * (1 / (int(scale) - 2))",
    "try: h = h * kw['missing']\nexcept KeyError as e: log.append(str(e))",
    "try: h = h * items[5]\nexcept IndexError: raise Trouble('items') from None",
    "try: h = h * items[int(scale)]\nfinally: box.n += 1",
)
FEATURES = (
    "h = torch.vmap(lambda r: r * {c} + r.sin())(h)",
    "h = checkpoint(lambda t: (t * {c}).sin(), h, use_reentrant=False)",
    "h = torch.cond(h.sum() > 0, lambda t: t.cos(), lambda t: t.sin() * {c}, (h,))",
    "h = h * 1; h.register_hook(lambda g: g * 2) if h.requires_grad else None",
    "h = h + torch.func.grad(lambda t: t.sin().sum())(h.detach())",
    "with torch.no_grad(): h = h + h.cos() * {c}",
    "with torch.autocast('cpu', dtype=torch.bfloat16): h = (h @ y).float()",
    "torch.set_grad_enabled(not torch.is_grad_enabled())",
)
RESULTS = (
    "h",
    "h",
    "(h, h)",
    "(h, x)",
    "(h, w, b)",
    "{'a': h, 'b': h * 2, 3: None}",
    "Pair(h, h + 1)",
    "Point(h, None)",
    "Box(h)",
    "box",
    "None",
    "3",
    "h.t()",
    "x",
    "x.view(-1)",
    "(h, h.view(-1), h[0])",
    "(h[0], h[1:])",
    "[h, [x, None, 3], {'k': h.sin()}]",
    "(t * 2 for t in (h, x))",
    "h.shape",
    "(h, h.detach())",
    "(h.cos(), h > 0, h.argmax())",
    "(h * 2, h.sum(), kw)",
    "lambda: h * 2",
    "functools.partial(torch.add, h)(1)",
)
CALLS = (
    "{r}(h, y, box, items, net)",
    "{r}(h, y, box, items, net)",
    "{r}(h, y, box=box, items=items, net=net, scale={s})",
    "{r}(net=net, box=box, items=items, y=y, x=h)",
    "{r}(h, h, box, items, net, {s})",
    "{r}(h, y, box, items, net, {s}, outs and 2)",
    "{r}(h, y, box, items, net, gain=h[0])",
    "{r}(h, y, box, items, net, extra={s}, other=None)",
    "functools.partial({r}, h, y, box)(items=items, net=net)",
    "(lambda t: {r}(t, w, box, items, net))(h)",
    "{r}(h, y, **dict(box=box, items=items, net=net, extra=h.sum()))",
    "{r}(*(h, w), box, [h, *items], net)",
    "{r}(h.t(), y[:, :], Box(h), items, net)",
)
# What f does with the result of a call, out.
USES = (
    "outs.append(out)",
    "outs.extend(tensors(out))",
    "h = merge(h, out)",
    "h = merge(h, out)",
    "h = merge(h, out) * 0.5; out = None",
    "for t in tensors(out)[:1]: t.add_(1)",
    "for t in tensors(out)[:2]: outs.append(t.view(-1)[:2])",
    "last = out",
    "outs.append([t is h for t in tensors(out)])",
)
AROUND = (
    "{call}",
    "{call}",
    "{call}",
    "try: {call}\n except (ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError) as e: outs.append(repr(e))",
    "with torch.no_grad(): {call}",
    "with torch.autocast('cpu', dtype=torch.bfloat16): {call}",
    "out = checkpoint(lambda t: {value}, h, use_reentrant=False)",
    "out = torch.vmap(lambda t: t * 2)(h); {call}",
    "out = torch.cond(h.sum() > 0, lambda t: t * 2 + tensors({value})[0].sum(), lambda t: t.sin(), (h,))",
)
# How a function is marked: what stands before it, what behind it, and its first parameter. A class indents it.
FORMS = (
    *[(("@region",), (), "")] * 4,
    ((), ("{r} = region(functools.partial({r}, gain=0.5))",), ""),
    (("class {r}:", "    @region"), ("{r} = {r}().{r}",), "self, "),
    (("class {r}:", "    @region", "    @staticmethod"), ("{r} = {r}.{r}",), ""),
    (("class {r}(torch.nn.Module):",), ("{r}.forward, {r} = region({r}.{r}), {r}()",), "self, "),
)
# What changes between the second and the third call of f, behind its back.
CHANGES = (
    *["pass"] * 4,
    "box.n += 1",
    "net.count += 1",
    "net.eval()",
    "STATE['n'] = 3",
    "box.value = torch.ones(4)",
    "items.append(torch.ones(4, 4))",
    "net.buf = torch.zeros(1)",
    "y.t_()",
    "net.lin.weight.requires_grad_(not net.lin.weight.requires_grad)",
)
SCALES = ("2.0", "i", "i + 1", "0.5", "[1.0, 3.0, 2.5][i % 3]", "h.shape[1]", "True")
CONSTANTS = ("1", "2.0", "0.5", "-0.0", "scale", "3")
SIGNATURE = "x, y, box, items, net, scale=1.5, *rest, gain=b, **kw"


class Trouble(ValueError):
    pass


def merge(h: torch.Tensor, value: Any) -> torch.Tensor:
    """One of h's shape that depends on all of ``value``'s tensors."""
    for t in tensors(value):
        if t.dtype.is_floating_point:
            h = h + (t.float() if t.shape == h.shape else t.float().mean())
    if isinstance(value, int):
        return h * value
    return merge(h, value()) if callable(value) else h


NAMESPACE = {
    "torch": torch,
    "F": F,
    "checkpoint": checkpoint,
    "functools": functools,
    "Point": Point,
    "Pair": Pair,
    "Box": Box,
    "tensors": tensors,
    "merge": merge,
    "random": random,
    "Trouble": Trouble,
}


@dataclasses.dataclass
class Program:
    """Source of ``make(w, b, log, table)``, which returns ``f(x, y, box, items, net)``."""

    source: str
    training: bool
    fullgraph: bool
    change: str = "pass"
    calls: int = 3


@st.composite
def _body(draw: st.DrawFn, name: str, inner: str | None) -> list[str]:
    kinds = [PURE, PURE, PURE, PURE, CAPTURES, CAPTURES, WRITES, EFFECTS, RANDOM, FEATURES]

    def fill(text: str) -> str:
        return text.replace("{c}", draw(st.sampled_from(CONSTANTS)))

    def put(line: str) -> None:
        lines.insert(draw(st.integers(0, len(lines))), line)

    lines = [fill(draw(st.sampled_from(draw(st.sampled_from(kinds))))) for _ in range(draw(st.integers(2, 8)))]
    for leaves in (BREAKS, RAISES):
        if draw(st.integers(0, 4)) == 4:
            put(draw(st.sampled_from(leaves)))
    if inner is not None:
        put(f"h = merge(h, {inner}(h, y, box, items, net))")
    head, tail, self = draw(st.sampled_from(FORMS))
    text = [
        f"def {{r}}({self}{SIGNATURE}):",
        "    nonlocal knob",
        "    h = x",
        *("    " + part for line in lines for part in line.split("\n")),
        f"    return {draw(st.sampled_from(RESULTS))}",
    ]
    inside = "    " if self or len(head) > 1 else ""
    return [line.replace("{r}", name) for line in (*head, *(inside + line for line in text), *tail)]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs with one or two regions, perhaps one inside the other, called several times."""
    lines = ["STATE = {'n': 1}", "def make(w, b, log, table):", "    knob, flip = 1.5, table[:, ::2]"]
    names: list[str] = []
    for k in range(draw(st.integers(1, 2))):
        inner = names[0] if names and draw(st.booleans()) else None
        names.append(f"r{k}")
        lines += ["    " + line for line in draw(_body(names[-1], inner))]
    lines += ["    def f(x, y, box, items, net):", "        outs, last = [], None", "        h = x * 1"]
    loop = draw(st.sampled_from(("for i in range(2):", "for i in range(3):", "for i in range(len(items)):")))
    lines.append(f"        {loop}")
    for _ in range(draw(st.integers(1, 3))):
        value = (
            draw(st.sampled_from(CALLS))
            .replace("{r}", draw(st.sampled_from(names)))
            .replace("{s}", draw(st.sampled_from(SCALES)))
        )
        around = draw(st.sampled_from(AROUND)).replace("{call}", f"out = {value}").replace("{value}", value)
        uses = [draw(st.sampled_from(USES)) for _ in range(draw(st.integers(1, 2)))]
        # A try that caught something leaves no result.
        block = ["out = None", *around.split("\n"), *uses]
        lines += ["            " + line.removeprefix(" ") for line in block]
    lines += ["        return h, outs, last, torch.is_grad_enabled(), knob", "    return f"]
    training = draw(st.booleans())
    return Program("\n".join(lines) + "\n", training, draw(st.booleans()), draw(st.sampled_from(CHANGES)))


def region(marked: bool) -> Any:
    return torch.compiler.nested_compile_region if marked else (lambda function: function)


def inputs(program: Program) -> dict[str, Any]:
    torch.manual_seed(0)
    w, b, x, y = torch.randn(4, 4), torch.randn(4), torch.randn(4, 4), torch.randn(4, 4)
    net = Net()
    if program.training:
        w.requires_grad_(), b.requires_grad_(), x.requires_grad_()
    else:
        net.requires_grad_(False)
    items = [torch.randn(4, 4), torch.randn(4, 4)]
    return {
        "w": w,
        "b": b,
        "log": [],
        "table": torch.randn(4, 8),
        "x": x,
        "y": y,
        "box": Box(torch.randn(4, 4)),
        "items": items,
        "net": net,
    }


def run(program: Program, backend: str, marked: bool) -> dict[str, Any]:
    """All that the runs of ``program`` can be seen to do."""
    name = f"<program {hash(program.source)}>"
    linecache.cache[name] = (len(program.source), None, program.source.splitlines(True), name)
    # Dynamo imports the module of a function that it meets behind a graph break.
    sys.modules["program"] = module = types.ModuleType("program")
    namespace = module.__dict__
    namespace.update(NAMESPACE, region=region(marked))
    exec(compile(program.source, name, "exec"), namespace)
    env = inputs(program)
    f = namespace["make"](*(env[k] for k in ("w", "b", "log", "table")))
    args = tuple(env[k] for k in ("x", "y", "box", "items", "net"))
    state = [namespace["STATE"], *(env[k] for k in ("log", "w", "b", "table"))]

    def between(call: int) -> None:
        if call == 2:
            exec(program.change, namespace, env)

    # Without grad mode, regions may write to inputs.
    return observe(f, args, backend, program.fullgraph, program.calls, state, between, grad=program.training)


@dataclasses.dataclass
class Checked:
    """What became of the regions' calls in one program."""

    traced: int
    inlined: int


def check(program: Program, backends: tuple[str, ...]) -> Checked:
    """Asserts that the marks change nothing."""
    traced = inlined = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            torch._dynamo.config.patch(graph_deduplication_lint=True, inline_single_use_invoke_subgraph=False)
        )
        for backend in backends:
            wanted = run(program, backend, marked=False)
            counters.clear()
            forget_outcomes()
            got = run(program, backend, marked=True)
            problem = difference(wanted, got)
            if problem and difference(wanted, run(program, backend, marked=False)):
                continue  # a first compilation differs from the later ones, marks or not
            assert problem is None, (
                f"marked, {backend}: {problem}\n{program.source}"
                f"training={program.training} fullgraph={program.fullgraph} change={program.change!r}"
            )
            traced += counters["regions"]["traced"] + counters["regions"]["reused"]
            inlined += counters["regions"]["inlined"]
            assert len(outcomes()) == sum(counters["regions"][o.value] for o in Outcome)
    return Checked(traced, inlined)
