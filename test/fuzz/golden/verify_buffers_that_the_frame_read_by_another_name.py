"""verify: between write_buffer, part asks_requires_grad, part last

The frame reads a buffer of one layer before it calls the layers.  There the dict of buffers is first known as ``_buffers``,
in the other layers as an element of ``__dict__``.  The guards are the same, at another name of one object.

Found with mode flag+verify on eager, after 9 programs of a search.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "forward", "container": "module_list", "classes": [0, 0, 0], "parts": [["last", "asks_requires_grad"]], "things": [], "between": [{"what": "write_buffer", "thing": -1, "at": 3, "j": 1}], "changes": [], "batches": [2], "input_grad": false, "training": true, "grad": false, "dynamic": false}
# found: ["verify", ["between write_buffer", "part asks_requires_grad", "part last"], "flag+verify", "eager"]
import sys
import collections, dataclasses, enum, functools, types, typing
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = True, False, True, 'eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
class L0(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.last = None
        s.register_buffer('b', torch.ones(3))
    @region
    def forward(s, h):
        h = s.lin(h).sin()
        s.last = h.detach()
        h = h * (2 if s.b.requires_grad else 3)
        return h

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.ls = nn.ModuleList([L0(0), L0(1), L0(2)])
    def forward(s, h):
        ls = list(s.ls)
        for i, l in enumerate(ls):
            if i == 0:
                ls[1].b.mul_(s.w)
            h = l(h)
        return h
def layers(m): return list(m.ls)

CHANGES = []

def make():
    global ROOT
    ROOT = M()
    return ROOT

def inputs(n):
    torch.manual_seed(n)
    x = torch.randn([2][n], 3)
    return x.requires_grad_(False)
CALLS, GRAD = 1, False
# end

def run(backend, flag):
    torch._dynamo.reset(); torch._dynamo.utils.counters.clear(); torch.manual_seed(0)
    m, seen = make(), []
    g = torch.compile(m, backend=backend) if backend else m
    for n in range(CALLS):
        if n: CHANGES[n - 1](m)
        x = inputs(n); torch.manual_seed(100 + n)
        globals().get("COUNTS", {}).clear()
        with torch.set_grad_enabled(GRAD): out = g(x)
        if out.requires_grad: out.sum().backward()
        seen.append((out.detach().tolist(), dict(globals().get("COUNTS", {})), torch._dynamo.utils.counters["frames"]["ok"]))
    return seen
if __name__ == "__main__":
    import sys
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    torch._dynamo.config.use_graph_deduplication = FLAG and what == "regions"
    torch._dynamo.config.verify_region_reuse = VERIFY and what == "regions"
    if what: print(*run(None if what == "eager" else BACKEND, FLAG), sep="\n")
    else:
        import subprocess
        for what in ("eager", "flat", "regions"): print(what, flush=True); subprocess.run([sys.executable, __file__, what])
