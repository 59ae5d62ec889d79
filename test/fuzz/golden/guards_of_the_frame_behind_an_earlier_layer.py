"""verify: between {e}.__closure__[0].cell_contents = {v}, kind closure_function

call 0: RegionReuseError: L0.forward: guards differ from what the reused call would have had:
--- expected
+++ traced
@@ -3,6 +3,3 @@
 ("L['s']._modules['ls']._modules['1']._modules['lin']", 'TYPE_MATCH')
 ("L['s']._modules['ls']._modules['1']._modules['lin']._parameters", 'TYPE_MATCH')
 ("L['s']._modules['ls']._modules['1']._parameters", 'TYPE_MATCH')
-("L['s']._modules['ls']._modules['1'].p", 'CLOSURE_MATCH')
-("L['s']._modules['ls']._modules['1'].p.__closure__", 'SEQUENCE_LENGTH')
-("L['s']._modules['ls']._modules['1'].p.__closure__[0]", 'TYPE_MATCH')

from user code:
   File "<fuzzed -7919375597858363608>", line 34, in forward
    h = l(h)
        ^^^^
  File "torch/_higher_order_ops/invoke_subgraph.py", line 177, in region
    return invoke_subgraph_placeholder(fn, *args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to PyTorch). For even more developer context, set TORCH_LOGS="+dynamo"


Found with mode mark+verify on aot_eager, after 8 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "forward", "container": "module_list", "classes": [0, 0, 0], "parts": [[]], "things": [{"kind": "closure_function", "values": [2.0, 3.0], "held": "attribute", "pattern": [0, 1, 0], "uses": [], "at_root": []}], "between": [{"what": "{e}.__closure__[0].cell_contents = {v}", "thing": 0, "at": 0, "j": 3}], "changes": [], "batches": [2], "input_grad": true, "training": true, "grad": false, "dynamic": false}
# found: ["verify", ["between {e}.__closure__[0].cell_contents = {v}", "kind closure_function"], "mark+verify", "aot_eager"]
import sys
import collections, dataclasses, enum, functools, types, typing
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = False, True, True, 'aot_eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
def closed(k):
    def f(h): return h * k
    return f

P0 = closed(2.0)
P1 = closed(3.0)

class L0(nn.Module):
    def __init__(s, i, p):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.p = p
    @region
    def forward(s, h):
        h = s.lin(h).sin()
        return h

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.p0 = P0
        s.p1 = P1
        s.ls = nn.ModuleList([L0(0, P0), L0(1, P1), L0(2, P0)])
    def forward(s, h):
        ls = list(s.ls)
        for i, l in enumerate(ls):
            if i == 0:
                ls[0].p.__closure__[0].cell_contents = 7.0
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
