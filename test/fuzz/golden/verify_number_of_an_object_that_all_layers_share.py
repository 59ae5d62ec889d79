"""verify: kind lru_cache

call 0: RegionReuseError: part0: constants that were looked at differ from what the reused call would have had:
--- expected
+++ traced
@@ -1 +1 @@
-(Applied(mul, (2, SourceValue(L['s']._modules['ls']._modules['1'].p.__wrapped__.__closure__[0].cell_contents))), (float, b'/x00/x00/x00/x00/x00/x00/x10@'))
+(Applied(mul, (2, SourceValue(L['s']._modules['ls']._modules['0'].p.__wrapped__.__closure__[0].cell_contents))), (float, b'/x00/x00/x00/x00/x00/x00/x10@'))

from user code:
   File "<fuzzed 7462536427259866344>", line 34, in forward
    for l in s.ls: h = l(h)
                       ^^^^
  File "<fuzzed 7462536427259866344>", line 25, in forward
    return part0(s, h)
           ^^^^^^^^^^^
  File "torch/_higher_order_ops/invoke_subgraph.py", line 238, in region
    return invoke_subgraph_placeholder(fn, *args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to PyTorch). For even more developer context, set TORCH_LOGS="+dynamo"


Found with mode mark+verify on eager, after 7 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "helper", "container": "module_list", "classes": [0, 0, 0], "parts": [[]], "things": [{"kind": "lru_cache", "values": [2.0], "held": "attribute", "pattern": [0, 0, 0], "uses": [{"statement": "h = h * {e}(2)", "through": "self", "number": 0}], "at_root": []}], "between": [], "changes": [], "batches": [2], "input_grad": true, "training": true, "grad": false, "dynamic": false}
# found: ["verify", ["kind lru_cache"], "mark+verify", "eager"]
import sys
import collections, dataclasses, enum, functools, types, typing, weakref
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = False, True, True, 'eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
def cached(k):
    @functools.lru_cache
    def f(n): return n * k
    return f

P0 = cached(2.0)

@region
def part0(s, h):
    x = h
    h = s.lin(h).sin()
    h = h * s.p(2)
    return h

class L0(nn.Module):
    def __init__(s, i, p):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.p = p
    def forward(s, h):
        return part0(s, h)

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.p0 = P0
        s.ls = nn.ModuleList([L0(0, P0), L0(1, P0), L0(2, P0)])
    def forward(s, h):
        for l in s.ls: h = l(h)
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
