"""verify: between write_buffer, part buffer

call 0: RegionReuseError: L0.step: operators differ from what the reused call would have had:
--- foretold
+++ traced
@@ -1,3 +1,3 @@
 v0 = ('call_function', ('is', <built-in function linear>), (('operand', ((2, 3), (3, 1), 0, torch.float32, device(type='cpu'), True, False)), ('operand', ((3, 3), (3, 1), 0, torch.float32, device(type='cpu'), True, False)), ('operand', ((3,), (1,), 0, torch.float32, device(type='cpu'), True, False))), (), ((2, 3), (3, 1), 0, torch.float32, device(type='cpu'), True, False), (), None) ['in0', 'in1', 'in2']
 v1 = ('call_method', (<class 'str'>, 'sin'), (('operand', ((2, 3), (3, 1), 0, torch.float32, device(type='cpu'), True, False)),), (), ((2, 3), (3, 1), 0, torch.float32, device(type='cpu'), True, False), (), None) ['v0']
-v2 = ('call_function', ('is', <built-in function add>), (('operand', ((2, 3), (3, 1), 0, torch.float32, device(type='cpu'), True, False)), ('operand', ((3,), (1,), 0, torch.float32, device(type='cpu'), True, False))), (), ((2, 3), (3, 1), 0, torch.float32, device(type='cpu'), True, False), (), None) ['v1', 'in3']
+v2 = ('call_function', ('is', <built-in function add>), (('operand', ((2, 3), (3, 1), 0, torch.float32, device(type='cpu'), True, False)), ('operand', ((3,), (1,), 0, torch.float32, device(type='cpu'), False, False))), (), ((2, 3), (3, 1), 0, torch.float32, device(type='cpu'), True, False), (), None) ['v1', 'in3']

from user code:
   File "<fuzzed -3886626395195033850>", line 27, in forward
    h = l(h)
        ^^^^

Found with mode mark+verify on eager, after 56 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "method", "container": "module_list", "classes": [0, 0, 0], "parts": [["buffer"]], "things": [], "between": [{"what": "write_buffer", "thing": -1, "at": 2, "j": 1}], "changes": [], "batches": [2], "input_grad": true, "training": true, "grad": true, "dynamic": false}
# found: ["verify", ["between write_buffer", "part buffer"], "mark+verify", "eager"]
import sys
import collections, dataclasses, enum, functools, types, typing
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = False, True, True, 'eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
class L0(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.register_buffer('b', torch.ones(3))
    def forward(s, h): return s.step(h)
    @region
    def step(s, h):
        h = s.lin(h).sin()
        h = h + s.b
        return h

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.ls = nn.ModuleList([L0(0), L0(1), L0(2)])
    def forward(s, h):
        ls = list(s.ls)
        for i, l in enumerate(ls):
            if i == 2:
                ls[1].b.mul_(s.w)
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
