"""verify: kind counting_dict

call 0: RegionReuseError: L0: guards differ from what the reused call would have had:
--- foretold
+++ traced
@@ -5,4 +5,3 @@
 ("L['s']._modules['ls']._modules['1']._modules['lin']._parameters", 'TYPE_MATCH')
 ("L['s']._modules['ls']._modules['1']._parameters", 'TYPE_MATCH')
 ("L['s']._modules['ls']._modules['1'].p", "DUPLICATE_INPUT source_b=L['s']._modules['ls']._modules['0'].p")
-("dict.__getitem__(L['s']._modules['ls']._modules['0'].p, list(dict.keys(L['s']._modules['ls']._modules['1'].p))[0])", 'CONSTANT_MATCH')

from user code:
   File "<fuzzed 1374660669208037661>", line 42, in forward
    h = apply(l, h)
        ^^^^^^^^^^^
  File "torch/_higher_order_ops/invoke_subgraph.py", line 147, in region
    return invoke_subgraph_placeholder(fn, *args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "<fuzzed 1374660669208037661>", line 21, in apply
    def apply(l, h): return l(h)
                            ^^^^

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to PyTorch). For even more developer context, set TORCH_LOGS="+dynamo"


Found with mode both+verify on eager, after 57 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "function", "container": "module_list", "classes": [0, 0, 0], "parts": [[]], "things": [{"kind": "counting_dict", "values": [2.0], "held": "attribute", "pattern": [0, 0, 0], "uses": [{"statement": "h = h * {e}['k']", "through": "self", "number": 0}], "at_root": []}], "between": [], "changes": [], "batches": [2], "input_grad": true, "training": true, "grad": false, "dynamic": false}
# found: ["verify", ["kind counting_dict"], "both+verify", "eager"]
import sys
import collections, dataclasses, enum, functools, types, typing
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
class CountingDict(dict):
    def __iter__(s): count('iter'); return super().__iter__()
    def __repr__(s): count('repr'); return super().__repr__()
    def __len__(s): count('len'); return super().__len__()
    def __eq__(s, *a): count('eq'); return super().__eq__(*a)
    def __getitem__(s, *a): count('getitem'); return super().__getitem__(*a)
    def __contains__(s, *a): count('contains'); return super().__contains__(*a)
    __hash__ = None

P0 = CountingDict(k=2.0, j=1.0)

@region
def apply(l, h): return l(h)

class L0(nn.Module):
    def __init__(s, i, p):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.p = p
    def forward(s, h):
        h = s.lin(h).sin()
        h = h * s.p['k']
        return h

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.p0 = P0
        s.ls = nn.ModuleList([L0(0, P0), L0(1, P0), L0(2, P0)])
    def forward(s, h):
        ls = list(s.ls)
        for i, l in enumerate(ls):
            h = apply(l, h)
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
