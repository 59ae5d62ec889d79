"""verify: part compares_integer

call 0: RegionReuseError: part0: constants that were looked at differ from what the reused call would have had:
--- expected
+++ traced
@@ -1 +0,0 @@
-(Applied(lt, (SourceValue(L['s']._modules['l'].n4), 4)), (bool, True))

Found with mode both+verify on eager, after 1 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "helper", "container": "once", "classes": [0, 0, 0], "parts": [["compares_integer"]], "things": [], "between": [], "changes": [], "batches": [2], "input_grad": false, "training": true, "grad": false, "dynamic": false}
# found: ["verify", ["part compares_integer"], "both+verify", "eager"]
import sys
import collections, dataclasses, enum, functools, types, typing, weakref
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = True, True, True, 'eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
COUNTS = {}
def count(name):
    if not torch.compiler.is_dynamo_compiling():
        COUNTS[name] = COUNTS.get(name, 0) + 1
class Ordered:
    def __lt__(s, o): count('lt'); return True

@region
def part0(s, h):
    x = h
    h = s.lin(h).sin()
    h = h * (2 if s.n4 < 4 else 3)
    return h

class L0(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.n4 = i
    def forward(s, h):
        return part0(s, h)

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.l = L0(0)
    def forward(s, h):
        ls = [s.l] * 3
        for i, l in enumerate(ls):
            h = l(h)
        return h
def layers(m): return [m.l] * 3

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
