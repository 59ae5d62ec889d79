"""recompiles: between autocast_call, part print

frames compiled after each call: [6], flat [5]

Found with mode both on eager, after 10 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "forward", "container": "module_list", "classes": [0, 1, 0], "parts": [[], ["print"]], "things": [], "between": [{"what": "autocast_call", "thing": -1, "at": 3, "j": 1}], "changes": [], "batches": [2], "input_grad": true, "training": true, "grad": false, "dynamic": false}
# found: ["recompiles", ["between autocast_call", "part print"], "both", "eager"]
import sys
import collections, dataclasses, enum, functools, types, typing
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = True, True, False, 'eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
class L0(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
    @region
    def forward(s, h):
        h = s.lin(h).sin()
        return h

class L1(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
    @region
    def forward(s, h):
        h = s.lin(h).sin()
        print('', end='')
        return h

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.ls = nn.ModuleList([L0(0), L1(1), L0(2)])
    def forward(s, h):
        ls = list(s.ls)
        for i, l in enumerate(ls):
            if i == 0:
                with torch.autocast('cpu', dtype=torch.bfloat16): h = ls[1](h).float()
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
