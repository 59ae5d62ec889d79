"""verify: between {e}.extra = {v}, kind switches

call 0: RegionReuseError: L1.step: a call that an entry was found for cannot be reused itself: ('it reads something that the frame has changed', "L['s']._modules['ls']._modules['3'].p")

from user code:
   File "<fuzzed 6561066597634433782>", line 47, in forward
    h = l(h)
        ^^^^
  File "<fuzzed 6561066597634433782>", line 28, in forward
    def forward(s, h): return s.step(h)
                              ^^^^^^^^^
  File "torch/_higher_order_ops/invoke_subgraph.py", line 238, in region
    return invoke_subgraph_placeholder(fn, *args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to PyTorch). For even more developer context, set TORCH_LOGS="+dynamo"


Found with mode both+verify on eager, after 25 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "method", "container": "module_list", "classes": [0, 1, 0, 1], "parts": [[], []], "things": [{"kind": "switches", "values": [2.0], "held": "attribute", "pattern": [0, 0, 0, 0], "uses": [{"statement": "h = h * (2.0 if {e}.extra is None else 3.0)", "through": "self", "number": 0}], "at_root": []}], "between": [{"what": "{e}.extra = {v}", "thing": 0, "at": 0, "j": 3}], "changes": [], "batches": [2], "input_grad": true, "training": true, "grad": false, "dynamic": false}
# found: ["verify", ["between {e}.extra = {v}", "kind switches"], "both+verify", "eager"]
import sys
import collections, dataclasses, enum, functools, types, typing, weakref
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = True, True, True, 'eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
class Switches:
    def __init__(s, k): s.on, s.mode, s.extra = k < 2.5, 'a' if k < 2.5 else 'b', None

P0 = Switches(2.0)

class L0(nn.Module):
    def __init__(s, i, p):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.p = p
    def forward(s, h): return s.step(h)
    @region
    def step(s, h):
        x = h
        h = s.lin(h).sin()
        h = h * (2.0 if s.p.extra is None else 3.0)
        return h

class L1(nn.Module):
    def __init__(s, i, p):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.p = p
    def forward(s, h): return s.step(h)
    @region
    def step(s, h):
        x = h
        h = s.lin(h).sin()
        h = h * (2.0 if s.p.extra is None else 3.0)
        return h

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.p0 = P0
        s.ls = nn.ModuleList([L0(0, P0), L1(1, P0), L0(2, P0), L1(3, P0)])
    def forward(s, h):
        ls = list(s.ls)
        for i, l in enumerate(ls):
            if i == 0:
                ls[3].p.extra = 7.0
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
