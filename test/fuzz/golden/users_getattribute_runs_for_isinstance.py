"""user code: between replace, kind getattribute_object

call 0: getattribute ran 201 times, flat 198

Found with mode flag on aot_eager, after 3 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "forward", "container": "module_list", "classes": [0, 0, 0, 0], "parts": [[]], "things": [{"kind": "getattribute_object", "values": [2.0, 3.0], "held": "inner", "pattern": [0, 1, 0, 1], "uses": [{"statement": "h = h + (1.0 if any(t is {e} for t in ({o}, None)) else 2.0)", "through": "self", "number": 1}], "at_root": []}], "between": [{"what": "replace", "thing": 0, "at": 4, "j": 3}], "changes": [], "batches": [2], "input_grad": true, "training": true, "grad": true, "dynamic": false}
# found: ["user code", ["between replace", "kind getattribute_object"], "flag", "aot_eager"]
import sys
import collections, dataclasses, enum, functools, types, typing
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = True, False, False, 'aot_eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
COUNTS = {}
def count(name):
    if not torch.compiler.is_dynamo_compiling():
        COUNTS[name] = COUNTS.get(name, 0) + 1
class Plain:
    def __init__(s, k): s.k = k
class Watched(Plain):
    def __getattribute__(s, *a): count('getattribute'); return super().__getattribute__(*a)
class Inner: pass

P0 = Watched(2.0)
P1 = Watched(3.0)

class L0(nn.Module):
    def __init__(s, i, p):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.p = Inner(); s.p.x = p
    @region
    def forward(s, h):
        h = s.lin(h).sin()
        h = h + (1.0 if any(t is s.p.x for t in (P1, None)) else 2.0)
        return h

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.p0 = P0
        s.p1 = P1
        s.ls = nn.ModuleList([L0(0, P0), L0(1, P1), L0(2, P0), L0(3, P1)])
    def forward(s, h):
        ls = list(s.ls)
        for i, l in enumerate(ls):
            if i == 0:
                ls[3].p.x = P1
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
    return x.requires_grad_(True)
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
