"""Each row that only saves time, left to stock for a compile with regions: all that can be read of the compile is the same.

What a short way answers is compared with stock's answer, for all that these programs meet, at one stroke: graphs, guards,
metadata, code of kernels, results.
"""

from __future__ import annotations

import difflib
import itertools
import re

import pytest
import torch
import torch._dynamo
import torch._inductor.compile_fx
import torch.fx.passes.fake_tensor_prop
from testing.cases import ALL
from testing.kernels import fresh_graphs
from testing.overlay_tools import RELEASE, REPO
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._inductor.utils import run_and_get_code

from torch_regions import _manifest, _switch


ROWS = [row for row in _manifest.load(str(REPO / _manifest.NAME)).on(RELEASE).rows if row.kind == "symbol"]
SHORT = [row.target for row in ROWS if row.group in ("speed", "cost")]
# What it saves is lines of code: a body does not assert what its caller has asserted.
LEAVES_OUT = "torch._inductor.codegen.wrapper:PythonWrapperCodegen.codegen_input_size_asserts"
IN_CODE = [target for target in SHORT if target.startswith("torch._inductor") and target != LEAVES_OUT]
IN_GRAPHS = [target for target in SHORT if not target.startswith("torch._inductor")]


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.register_buffer("seen", torch.zeros(()))
        self.options = {"shift": 0.5}

    def forward(self, x):
        self.seen.add_(1)
        return x * self.factor + self.options["shift"] * self.seen


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 24), torch.nn.LayerNorm(8)
        self.scale = Scale()

    def forward(self, x, mask=None, *, gain=2.0):
        q, k, v = self.linear(self.norm(x)).view(x.shape[0], -1, 3, 8).unbind(2)
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
        y = torch.nn.functional.dropout(weights @ v, 0.1, self.training)
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        return x + self.scale(y.flip(1).reshape(x.shape)) * gain


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.table = torch.nn.Embedding(10, 8)

    def forward(self, ids, mask):
        x = self.table(ids)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            for block in self.blocks:
                x = block(x, mask, gain=1.5)
        return x.float()


def _steady(text):
    return re.sub(r"0x[0-9a-f]+|(?<!\d)\d{7,}(?!\d)|builtins_dict___\d+|'call_id': \d+|AOT ID: .*", "N", text)


INPUTS = torch.arange(8).view(2, 4), torch.arange(4).view(1, 4, 1) % 3 == 0


def _run(model, called):
    torch.manual_seed(0)
    out = called(*INPUTS)
    out.sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters()), *model.buffers()]


def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    return Net()


def _graphs():
    """Text of all graphs and guards, and the results, of a compile under the flag."""
    texts, model = [], _fresh()

    def shown(gm, inputs):
        for name, part in gm.named_modules():
            if isinstance(part, torch.fx.GraphModule):
                texts.append(name + part.print_readable(False, include_stride=True, include_device=True))
                texts.extend(f"{n} {n.type} {sorted(n.meta)} {n.meta.get('stack_trace')}" for n in part.graph.nodes)
        return gm.forward

    aot = aot_autograd(fw_compiler=shown, bw_compiler=shown)

    def backend(gm, inputs):
        shown(gm, inputs)
        return aot(gm, inputs)

    with torch._dynamo.config.patch(use_graph_deduplication=True):
        results = _run(model, torch.compile(model, backend=backend, dynamic=True))
    texts += [str(entry.guard_manager) for entry in _debug_get_cache_entry_list(Net.forward.__code__)]
    assert sum("invoke_subgraph" in text for text in texts) > 2 and any("TENSOR_MATCH" in text for text in texts)
    return [_steady(text) for text in texts], results


def _code():
    model = _fresh()
    with torch._dynamo.config.patch(use_graph_deduplication=True), fresh_graphs():
        results, texts = run_and_get_code(_run, model, torch.compile(model, dynamic=True))
    return [_steady(text) for text in texts], results


_found = {}


def _with_all(observe):
    if observe not in _found:
        observe()  # what is decided once in a process is decided now
        _found[observe] = observe()
    return _found[observe]


def _compare(targets, observe, monkeypatch):
    wanted, results = _with_all(observe)
    for target in targets:
        each = _switch._switched[target]
        monkeypatch.setattr(each, "step", each.code)
    got, stock_results = observe()
    torch.testing.assert_close(stock_results, results)
    if got != wanted:
        changes = (difflib.unified_diff(w.splitlines(), g.splitlines(), lineterm="", n=1) for w, g in zip(wanted, got))
        raise AssertionError("\n".join(itertools.islice(itertools.chain.from_iterable(changes), 60)))


def test_graphs_and_guards_are_those_with_stocks_functions(monkeypatch):
    _compare(IN_GRAPHS, _graphs, monkeypatch)


def test_code_is_that_with_stocks_functions(monkeypatch):
    _compare(IN_CODE, _code, monkeypatch)


@ALL
@pytest.mark.parametrize("target", IN_GRAPHS)
def test_graphs_and_guards_are_those_with_a_function_of_stocks(target, monkeypatch):
    _compare([target], _graphs, monkeypatch)


@ALL
@pytest.mark.parametrize("target", IN_CODE)
def test_code_is_that_with_a_function_of_stocks(target, monkeypatch):
    _compare([target], _code, monkeypatch)
