"""error: change replace, kind list

The look for methods among what is compared asked a symbolic number for its value.
"""
# spec: {"form": "forward", "container": "module_list", "classes": [0, 0, 0], "parts": [[]], "things": [{"kind": "list", "values": [2.0, 3.0], "held": "attribute", "pattern": [0, 0, 0], "uses": [{"statement": "h = h + (1.0 if {e} in ({o}, None) else 2.0)", "through": "self", "number": 1}], "at_root": []}], "between": [], "changes": [[{"what": "replace", "thing": 0, "i": 0, "j": 1}]], "batches": [2, 2], "input_grad": true, "training": true, "grad": false, "dynamic": false}
# found: ["error", ["change replace", "kind list"], "flag+verify", "eager"]
import sys
import collections, dataclasses, enum, functools, types, typing, weakref
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = True, False, True, 'eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
P0 = [2.0, 1.0]
P1 = [3.0, 1.0]

class L0(nn.Module):
    def __init__(s, i, p):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.p = p
    @region
    def forward(s, h):
        x = h
        h = s.lin(h).sin()
        h = h + (1.0 if s.p in (P1, None) else 2.0)
        return h

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.p0 = P0
        s.p1 = P1
        s.ls = nn.ModuleList([L0(0, P0), L0(1, P0), L0(2, P0)])
    def forward(s, h):
        for l in s.ls: h = l(h)
        return h
def layers(m): return list(m.ls)

def change1(m):
    ls = layers(m)
    ls[0].p = P1
CHANGES = [change1]

def make():
    global ROOT
    ROOT = M()
    return ROOT

def inputs(n):
    torch.manual_seed(n)
    x = torch.randn([2, 2][n], 3)
    return x.requires_grad_(False)
CALLS, GRAD = 2, False
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
