"""result: between norm_call, change dies, kind tuple_subclass, part batch_norm, part result_argument, part seen_weakly

call 1: [3.9877963066101074, -2.0000247955322266, 1.999601125717163] is not [2.9878013134002686, -1.0000263452529907, 2.9995994567871094]

Found with mode both+verify on eager, after 10 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "result_argument", "container": "module_list", "classes": [0, 0, 0], "parts": [["batch_norm", "seen_weakly"]], "things": [{"kind": "tuple_subclass", "values": [2.0, 2.0], "held": "attribute", "pattern": [0, 1, 0], "uses": [{"statement": "h = h * (2.0 if {e} is not {o} else 3.0)", "through": "self", "number": 1}], "at_root": []}], "between": [{"what": "norm_call", "thing": -1, "at": 3, "j": 1}], "changes": [[{"what": "dies", "thing": -1, "i": 2, "j": 2}]], "batches": [2, 2], "input_grad": false, "training": true, "grad": true, "dynamic": false}
# found: ["result", ["between norm_call", "change dies", "kind tuple_subclass", "part batch_norm", "part result_argument", "part seen_weakly"], "both+verify", "eager"]
import sys
import collections, dataclasses, enum, functools, types, typing, weakref
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = True, True, True, 'eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
class Alone:
    k = 2.0
class Tuple(tuple): pass

P0 = Tuple((2.0, 1))
P1 = Tuple((2.0, 1))

class L0(nn.Module):
    def __init__(s, i, p):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.p = p
        s.norm = nn.BatchNorm1d(3)
        s.alone = Alone(); s.seen = weakref.ref(s.alone)
    def forward(s, h): h, r = s.step(h); return h + r
    @region
    def step(s, h):
        x = h
        h = s.lin(h).sin()
        h = h * (2.0 if s.p is not P1 else 3.0)
        h = s.norm(h)
        h = h * (3.0 if s.seen() is None else s.seen().k)
        return h, x

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
                h = ls[1].norm(h)
            h = l(h)
        return h
def layers(m): return list(m.ls)

def change1(m):
    ls = layers(m)
    ls[2].alone = None
CHANGES = [change1]

def make():
    global ROOT
    ROOT = M()
    return ROOT

def inputs(n):
    torch.manual_seed(n)
    x = torch.randn([2, 2][n], 3)
    return x.requires_grad_(False)
CALLS, GRAD = 2, True
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
