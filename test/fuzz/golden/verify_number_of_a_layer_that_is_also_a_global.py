"""verify: between replace, kind namedtuple

call 0: RegionReuseError: L0: guards differ from what the reused call would have had:
--- expected
+++ traced
@@ -1,4 +1,3 @@
-("G['P1'].j", "EQUALS_MATCH recompile_hint='torch.compile considers integer attributes of the nn.Module to be static. If you are observing recompilation, you might want to make this integer dynamic using torch._dynamo.config.allow_unspec_int_on_nn_module = True, or convert this integer into a tensor.'")
 ("L['s']._modules['ls']._modules['2']", "NOT_PRESENT_IN_GENERIC_DICT attr='forward'")
 ("L['s']._modules['ls']._modules['2']._modules", 'TYPE_MATCH')
 ("L['s']._modules['ls']._modules['2']._modules['lin']", "NOT_PRESENT_IN_GENERIC_DICT attr='forward'")

from user code:
   File "<fuzzed -4588407777860660268>", line 35, in forward
    h = l(h)
        ^^^^

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to PyTorch). For even more developer context, set TORCH_LOGS="+dynamo"


Found with mode flag+verify on aot_eager, after 5 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "forward", "container": "module_list", "classes": [0, 0, 0], "parts": [[]], "things": [{"kind": "namedtuple", "values": [2.0, 2.0], "held": "attribute", "pattern": [-1, -1, 1], "uses": [{"statement": "h = h + (1.0 if {e} in ({o}, None) else 2.0)", "through": "self", "number": 0}], "at_root": []}], "between": [{"what": "replace", "thing": 0, "at": 0, "j": 4}], "changes": [], "batches": [2], "input_grad": true, "training": true, "grad": false, "dynamic": false}
# found: ["verify", ["between replace", "kind namedtuple"], "flag+verify", "aot_eager"]
import sys
import collections, dataclasses, enum, functools, types, typing
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = True, False, True, 'aot_eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
class Named(typing.NamedTuple):
    k: float
    j: int

P0 = Named(2.0, 1)
P1 = Named(2.0, 1)

class L0(nn.Module):
    def __init__(s, i, p):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.p = p
    @region
    def forward(s, h):
        h = s.lin(h).sin()
        h = h + (1.0 if s.p in (P0, None) else 2.0)
        return h

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.p0 = P0
        s.p1 = P1
        s.ls = nn.ModuleList([L0(0, Named(2.0, 1)), L0(1, Named(2.0, 1)), L0(2, P1)])
    def forward(s, h):
        ls = list(s.ls)
        for i, l in enumerate(ls):
            if i == 0:
                ls[1].p = P1
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
