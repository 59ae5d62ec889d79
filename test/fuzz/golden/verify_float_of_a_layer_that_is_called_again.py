"""verify: change no_momentum, part batch_norm

call 1: RegionReuseError: L0.forward: a call that an entry was found for cannot be reused itself: ('it reads a number behind an argument that Dynamo treats as symbolic', 'Eq(zf90, 0.5) is guarded')

from user code:
   File "<fuzzed -7794367584928852695>", line 25, in forward
    h = l(h)
        ^^^^
  File "torch/_higher_order_ops/invoke_subgraph.py", line 230, in region
    return invoke_subgraph_placeholder(fn, *args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to PyTorch). For even more developer context, set TORCH_LOGS="+dynamo"


Found with mode mark+verify on aot_eager, after 26 programs.  Run: eager, flat and with regions, one line a call.
"""
# spec: {"form": "forward", "container": "once", "classes": [0, 0, 0], "parts": [["batch_norm"]], "things": [], "between": [], "changes": [[{"what": "no_momentum", "thing": -1, "i": 2, "j": 1}]], "batches": [2, 2], "input_grad": false, "training": true, "grad": false, "dynamic": false}
# found: ["verify", ["change no_momentum", "part batch_norm"], "mark+verify", "aot_eager"]
import sys
import collections, dataclasses, enum, functools, types, typing
import torch
import torch.nn as nn
import torch.nn.functional as F
FLAG, MARK, VERIFY, BACKEND = False, True, True, 'aot_eager'
region = torch.compiler.nested_compile_region if MARK and sys.argv[1:] == ['regions'] else (lambda f: f)
# program
class L0(nn.Module):
    def __init__(s, i):
        super().__init__()
        s.lin, s.idx = nn.Linear(3, 3), i
        s.norm = nn.BatchNorm1d(3)
    @region
    def forward(s, h):
        x = h
        h = s.lin(h).sin()
        h = s.norm(h)
        return h

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

def change1(m):
    ls = layers(m)
    ls[2].norm.momentum = 0.5
CHANGES = [change1]

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
