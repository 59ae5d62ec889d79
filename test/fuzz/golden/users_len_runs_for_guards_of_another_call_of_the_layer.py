"""user code: a layer that is called under two kinds of autocast, and then reused without one

call 0: len ran 18 times, flat 12

Found with mode mark on eager, after 26 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "forward", "container": "module_list", "classes": [0, 0, 0], "parts": [[]], "things": [{"kind": "counting_list", "values": [2.0], "held": "attribute", "pattern": [-1, -1, 0], "uses": [{"statement": "h = h * {e}[0]", "through": "self", "number": 0}], "at_root": []}], "between": [{"what": "autocast_calls", "thing": -1, "at": 4, "j": 2}], "changes": [], "batches": [2], "input_grad": true, "training": true, "grad": false, "dynamic": false}
# found: ["user code", ["between autocast_calls", "kind counting_list"], "mark", "eager"]
import sys
import collections, dataclasses, enum, functools, types, typing
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = False, True, False, 'eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
COUNTS = {}
def count(name):
    if not torch.compiler.is_dynamo_compiling():
        COUNTS[name] = COUNTS.get(name, 0) + 1
class CountingList(list):
    def __iter__(s): count('iter'); return super().__iter__()
    def __repr__(s): count('repr'); return super().__repr__()
    def __len__(s): count('len'); return super().__len__()
    def __eq__(s, *a): count('eq'); return super().__eq__(*a)
    __hash__ = None

P0 = CountingList([2.0, 1.0])

class L0(nn.Module):
    def __init__(s, i, p):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.p = p
    @region
    def forward(s, h):
        h = s.lin(h).sin()
        h = h * s.p[0]
        return h

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.p0 = P0
        s.ls = nn.ModuleList([L0(0, CountingList([2.0, 1.0])), L0(1, CountingList([2.0, 1.0])), L0(2, P0)])
    def forward(s, h):
        ls = list(s.ls)
        for i, l in enumerate(ls):
            if i == 1:
                with torch.autocast('cpu', torch.bfloat16): h = ls[2](h).float()
                with torch.autocast('cpu', torch.float16): h = ls[2 - 1](h).float()
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
