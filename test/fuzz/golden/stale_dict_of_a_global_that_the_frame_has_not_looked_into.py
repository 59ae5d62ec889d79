"""stale: kind counting_dict, through global

call 1: another output than eager's: the frame reads nothing but the identity of P0, layer 0 the length of a dict of its own, and
layers 1 and 2 that of P0. Stamped out of layer 0, they had no guard on the keys of P0.

Found as a guard that the reused call lacked, with mode flag+verify on eager, after 6,000 programs; the change was added by hand.
"""
# spec: {"form": "forward", "container": "module_list", "classes": [0, 0, 0], "parts": [[]], "things": [{"kind": "counting_dict", "values": [2.0], "held": "attribute", "pattern": [-1, 0, 0], "uses": [{"statement": "h = h * len({e})", "through": "self", "number": 1}], "at_root": [{"statement": "h = h * (2.0 if {e} is {o} else 3.0)", "through": "global", "number": 0}]}], "between": [], "changes": [], "batches": [2], "input_grad": true, "training": true, "grad": false, "dynamic": false}
# found: ["verify", ["kind counting_dict", "through global"], "flag+verify", "eager"]
import sys
import collections, dataclasses, enum, functools, types, typing
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = True, False, False, 'eager'
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

class L0(nn.Module):
    def __init__(s, i, p):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.p = p
    @region
    def forward(s, h):
        h = s.lin(h).sin()
        h = h * len(s.p)
        return h

class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.w = nn.Parameter(torch.full((3,), 1.5))
        s.p0 = P0
        s.ls = nn.ModuleList([L0(0, CountingDict(k=2.0, j=1.0)), L0(1, P0), L0(2, P0)])
    def forward(s, h):
        h = h * (2.0 if P0 is P0 else 3.0)
        for l in s.ls: h = l(h)
        return h
def layers(m): return list(m.ls)

CHANGES = [lambda m: P0.update(z=3.0)]

def make():
    global ROOT
    ROOT = M()
    return ROOT

def inputs(n):
    torch.manual_seed(n)
    x = torch.randn([2, 2][n], 3)
    return x.requires_grad_(False)
CALLS, GRAD = 2, False
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
