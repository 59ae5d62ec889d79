"""Without flag and mark the overlay changes nothing: the same graphs, guards and recompiles."""

from __future__ import annotations

import difflib

from testing.overlay_tools import run_python


PROGRAMS = """
import functools, re, sys, torch
from torch._dynamo.utils import counters

torch.manual_seed(0)

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.scale = 2.0
    def forward(self, x, flag=True):
        y = self.norm(self.linear(x)).relu() * self.scale
        return x + y if flag else x - y

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))
    def forward(self, x, flags=(True, True, False, True)):
        for block, flag in zip(self.blocks, flags):
            x = block(x, flag)
        return x

def loop(x):
    out = []
    for s in [2.0, 3.0, 4.0]:
        out.append((x * s).sin().sum())
    return out

def branch(x, n):
    return torch.cond(x.sum() > n, lambda x: x + 1, lambda x: x - 1, (x,))

def broken(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2

def mutate(x, cache):
    cache["last"] = x
    x.add_(1)
    return x.view(-1) * len(cache)

def random(x):
    return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)

def islands(x):
    with torch.no_grad():
        y = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ x
    return y + z

def closure(x, k=[1, 2]):
    def inner(y):
        return y * k[0] + k[1]
    return inner(inner(x))

def repeated(x):
    for _ in range(6):
        x = torch.nn.functional.gelu(x @ x) + x
    return x

def ones(*shape):
    return torch.ones(*shape)

net = Net()
runs = {
    "net": (net, [(ones(2, 4),), (ones(3, 4),), (ones(2, 4), (True, False, False, True))]),
    "training": (Net(), [(ones(2, 4).requires_grad_(),)]),
    "loop": (loop, [(ones(3),), (ones(3).double(),)]),
    "branch": (branch, [(ones(3), 1), (ones(3), 7)]),
    "broken": (broken, [(ones(3),), (ones(5),)]),
    "mutate": (mutate, [(ones(3), {}), (ones(3), {"a": 1})]),
    "random": (random, [(ones(3),)]),
    "islands": (islands, [(ones(3, 3),), (ones(3, 3).requires_grad_(),)]),
    "closure": (closure, [(ones(3),), (ones(3), [3, 4])]),
    "repeated": (repeated, [(ones(3, 3),), (ones(4, 4),)]),
}

def guards_of(function):
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list
    code = function.forward.__func__ if isinstance(function, torch.nn.Module) else function
    for entry in _debug_get_cache_entry_list(code.__code__):
        yield str(entry.guard_manager)

for name, (function, calls) in runs.items():
    graphs = []
    def backend(gm, inputs, graphs=graphs):
        graphs.append(gm.print_readable(print_output=False, include_stride=True))
        return gm.forward
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, backend=backend)
    for call in calls:
        out = compiled(*call)
    print("==", name, len(graphs), sorted(counters["stats"].items()), sorted(counters["frames"].items()))
    for graph in graphs:
        print(graph)
    for text in guards_of(function):
        print(re.sub(r"0x[0-9a-f]+|\\b\\d{7,}\\b", "N", text))  # an object of a static type has a low address
"""


def test_ten_programs(tmp_path):
    script = tmp_path / "programs.py"
    script.write_text(PROGRAMS)
    outputs = {
        setting: run_python(str(script), TORCH_REGIONS=setting, PYTHONHASHSEED="0") for setting in ("0", "strict")
    }
    assert not outputs["strict"].warnings
    stock, ours = (outputs[setting].out.splitlines() for setting in ("0", "strict"))
    assert sum(line.startswith("==") for line in stock) == 10
    assert sum("TENSOR_MATCH" in line for line in stock) >= 10, "the guards are missing"
    changes = list(difflib.unified_diff(stock, ours, "stock", "overlay", lineterm=""))
    assert not changes, "\n".join(changes[:60])
