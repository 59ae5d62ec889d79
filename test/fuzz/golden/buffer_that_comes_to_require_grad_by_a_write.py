"""result: between write_buffer, part asks_requires_grad

call 0: [1.8264983892440796, -1.9060670137405396, 0.6331430077552795] is not [2.9905004501342773, -2.9164140224456787, 1.5421839952468872]

Found with mode flag on eager, after 0 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "forward", "container": "once", "classes": [0, 0, 0, 0], "parts": [["asks_requires_grad"]], "things": [], "between": [{"what": "write_buffer", "thing": -1, "at": 2, "j": 0}], "changes": [], "batches": [2], "input_grad": false, "training": true, "grad": true, "dynamic": false}
# found: ["result", ["between write_buffer", "part asks_requires_grad"], "flag", "eager"]
import sys
import collections, dataclasses, enum, functools, types, typing
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = True, False, False, 'eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
class L0(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.register_buffer('b', torch.ones(3))
    @region
    def forward(s, h):
        h = s.lin(h).sin()
        h = h * (2 if s.b.requires_grad else 3)
        return h

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.l = L0(0)
    def forward(s, h):
        ls = [s.l] * 4
        for i, l in enumerate(ls):
            if i == 2:
                ls[0].b.mul_(s.w)
            h = l(h)
        return h
def layers(m): return [m.l] * 4

CHANGES = []

def make():
    global ROOT
    ROOT = M()
    return ROOT

def inputs(n):
    torch.manual_seed(n)
    x = torch.randn([2][n], 3)
    return x.requires_grad_(False)
CALLS, GRAD = 1, True
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
