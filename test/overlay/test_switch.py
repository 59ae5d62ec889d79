"""Without flag and mark, stock's functions run; with one of them, ours."""

from __future__ import annotations

import json

import pytest
from testing import vectors
from testing.overlay_tools import RELEASE, REPO, run_code, run_python

from torch_regions import _manifest


ROWS = [row for row in _manifest.load(str(REPO / _manifest.NAME)).on(RELEASE).rows if row.kind == "symbol"]
SWITCHED = [row.target for row in ROWS if not row.always]

# Counts the calls of each replacement of the rows, while small programs are compiled in one way.
COUNT = """
import collections, json, sys, types
import torch, torch._dynamo, torch._inductor.compile_fx, torch.fx.passes.fake_tensor_prop
from torch_regions import _switch

way, backend = sys.argv[1:]
calls = collections.Counter()

def counted(target, function):
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    def count(*args, **kwargs):
        calls[target] += 1
        return copy(*args, **kwargs)
    return count

wrapped = set()
def watch():
    for target, each in list(_switch._switched.items()):
        if target not in wrapped:
            wrapped.add(target)
            count = counted(target, each.ours)
            each.step = each.step.replace(
                co_consts=tuple(count if const is each.ours else const for const in each.step.co_consts)
            )

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
        self.numbers = [1.0, 2.0]
    def forward(self, x, scale=2.0):
        first, second = self.linear(x).chunk(2, -1)
        return x + self.norm(torch.cat([first.relu() * scale, second.sin() * self.numbers[0]], -1)).relu()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))
        self.cache = {}
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)
        return x.sum()

def views(x, n):
    y = x.view(-1)[:n].clone()
    y.add_(1)
    return y * 2

import torch.utils.checkpoint
torch._dynamo.config.use_graph_deduplication = way == "flag"
if way == "mark":
    Block.forward = torch.compiler.nested_compile_region(Block.forward)
watch()
torch.manual_seed(0)
net = Net()
x = torch.randn(4, 8)
for sizes in (4, 6):
    torch.compile(net, backend=backend)(torch.randn(sizes, 8)).backward()
if way == "none":
    torch.compile(views, backend=backend)(x, 3)
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(net, backend=backend)(x).backward()
    torch.export.export(net, (x,))
watch()
assert not _switch._local.on and not _switch._threads_on
assert all(each.place.value.__code__ is each.code for each in _switch._switched.values())
print(json.dumps({"calls": calls, "switched": sorted(_switch._switched)}))
"""
_done: dict[tuple[str, str], dict] = {}


def counts(folder, way: str, backend: str) -> dict:
    if (way, backend) not in _done:
        script = folder / "count.py"
        script.write_text(COUNT)
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(folder / f"{way}-{backend}"), "TORCH_REGIONS": "strict"}
        environment[vectors.VARIABLE] = ""  # its own answer is among what is counted
        result = run_python(str(script), way, backend, OMP_NUM_THREADS="1", **environment)
        _done[way, backend] = json.loads(result.out.splitlines()[-1])
    return _done[way, backend]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("counts")


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("target", SWITCHED)
def test_the_stock_function_runs_without_flag_and_mark(folder, target, backend):
    found = counts(folder, "none", backend)
    assert target in found["switched"] or backend != "inductor"
    assert found["calls"].get(target, 0) == 0


# Reached by programs that have opaque objects, that read what they have changed, that format what they read, that call
# functions under `assume_constant_result`, that hash what they read, and for wrappers that call no regions.
RARE = {
    "torch._dynamo.variables.functions:invoke_and_store_as_constant",
    "torch._higher_order_ops.passes.inline_invoke_subgraph:inline_invoke_subgraph",
    "torch._dynamo.variables.script_object:TorchScriptObjectVariable.as_python_constant",
    "torch._dynamo.variables.script_object:CustomClassObjectVariable.as_python_constant",
    "torch._dynamo.symbolic_convert:InstructionTranslatorBase._format_value",
    "torch._dynamo.side_effects:SideEffects.load_attr",
    "torch._dynamo.variables.lazy:LazyVariableTracker.is_hashable_lazy",
    "torch._dynamo.variables.object_protocol:generic_hash",
    "torch._dynamo.variables.object_protocol:generic_setitem",
}
if RELEASE.startswith("2.15"):  # an attribute that the bytecode names is read without it
    RARE.add("torch._dynamo.variables.builtin:GetAttrBuiltinVariable.call_function")


@pytest.mark.parametrize("target", SWITCHED)
def test_ours_runs_with_flag_or_mark(folder, target):
    found = [counts(folder, way, "inductor")["calls"].get(target, 0) for way in ("flag", "mark")]
    assert any(found) != (target in RARE)


def test_each_row_says_when_it_runs():
    for row in ROWS:
        assert row.group in _manifest.GROUPS
        assert not (row.always and row.group in _manifest.NEVER_ALWAYS), row.target
        assert not row.always or row.always.endswith("."), row.target


def test_another_thread_runs_stock():
    """The switch is a thread's own, and a nested compile's; an error ends it too."""
    run_code(
        """
        import threading, torch, torch._dynamo
        from torch.utils import _traceback
        from torch._dynamo.regions.switch import compiling, has_regions, regions_found
        from torch_regions import _switch
        target = "torch.utils._traceback:shorten_filename"
        seen = []
        each = _switch._switched[target]
        ours = lambda name, *, base=None: seen.append(threading.get_ident())
        each.step = each.step.replace(co_consts=tuple(ours if c is each.ours else c for c in each.step.co_consts))
        place, code = _traceback.shorten_filename, each.code
        def ask():
            _traceback.shorten_filename("a")
        ask()
        regions_found()
        ask()
        assert not seen and place.__code__ is code
        with compiling(False):
            ask()
            regions_found()
            ask()
            assert len(seen) == 1 and place.__code__ is each.step
            with compiling(False):
                ask()
            thread = threading.Thread(target=ask)
            thread.start(); thread.join()
            assert len(seen) == 1 and has_regions()
        ask()
        try:
            with compiling(True):
                raise KeyError
        except KeyError:
            pass
        ask()
        assert len(seen) == 1 and place.__code__ is code and not has_regions()
        """
    )


def test_functions_with_free_variables_are_switched():
    """The code that stands in for another one has as many."""
    run_code(
        """
        import torch
        from torch_regions import _switch
        class Base:
            def f(self, a, *, b=2):
                return a + b
        class Derived(Base):
            def f(self, a, *, b=3):
                return super().f(a, b=b)
        made = _switch.add("here:Derived.f", Derived.f, lambda self, a, *, b=5: ("ours", a, b))
        assert Derived().f(1) == 4
        _switch.turn(True)
        assert Derived().f(1) == ("ours", 1, 5) and Derived().f(1, b=7) == ("ours", 1, 7)
        assert made.stock.value(Derived(), 1) == 4
        _switch.turn(False)
        assert Derived().f(1) == 4 and Derived.f.__code__ is made.code
        """
    )


INTERRUPTED = """
    import sys, torch, torch._dynamo
    from torch._dynamo import side_effects
    from torch._dynamo.regions import switch
    from torch_regions import _switch

    FILES = (switch.__file__, _switch.__file__)
    functions = [each.place.value for each in _switch._switched.values()]

    def state():
        return switch.has_regions(), switch.is_compiling(), _switch._local.on, [f.__code__ for f in functions]

    def compiled(limit):
        # Raises at the limit-th line of the switch, as a Ctrl-C there would.
        count = 0
        def lines(frame, event, arg):
            nonlocal count
            if event == "line":
                count += 1
                if count == limit:
                    where.append(f"{frame.f_code.co_name} {frame.f_lineno}")
                    raise KeyboardInterrupt
            return lines
        sys.settrace(lambda frame, event, arg: lines if frame.f_code.co_filename in FILES else None)
        try:
            with switch.compiling(True):
                assert switch.has_regions()
        finally:
            sys.settrace(None)
        return count

    where = []
    before = state()
    total, bad, kept = compiled(-1), [], []
    for limit in range(1, total + 1):
        try:
            compiled(limit)
        except KeyboardInterrupt as error:
            kept.append(error)  # what a traceback keeps does not matter
        else:
            bad.append((limit, "no interrupt"))
        if state() != before:
            bad.append((limit, where[-1], state()[:3], sum(a is not b for a, b in zip(state()[3], before[3]))))
            switch._turn(False)
            switch._state.depth = 0
    print(total, bad)
"""


def test_an_interrupt_of_the_switch_leaves_it_off():
    result = run_code(INTERRUPTED)
    total, _, bad = result.out.strip().partition(" ")
    assert int(total) > 50, result
    # The first lines of leaving: nothing that is interrupted there has begun to put anything back.
    assert len(__import__("ast").literal_eval(bad)) <= 3, bad
